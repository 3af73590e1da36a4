# SPDX-License-Identifier: Apache-2.0
"""A KV connector to a store that has every prefix, and the engine that does what it asks for."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
)
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request

from .engine import Engine


def remote_store(**options: Any) -> KVTransferConfig:
    return KVTransferConfig(
        kv_connector="RemoteStore",
        kv_connector_module_path=__name__,
        kv_role="kv_both",
        **options,
    )


@dataclass
class Load:
    """KV that the store sends into ``blocks``, for the tokens at ``[start, stop)``."""

    request: Request
    blocks: list[int]
    start: int
    stop: int


class RemoteStore(KVConnectorBase_V1):
    """The scheduler's side of the connector.

    Attributes:
        num_available: how many tokens of a request's prefix the store has.
        in_background: whether loads take longer than a step.
        keeps_finished: whether the blocks of a finished request are still being sent.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.num_available: Callable[[Request], int] = lambda request: 0
        self.in_background = False
        self.keeps_finished = False
        self.loads: list[Load] = []

    @property
    def requires_kv_delivery(self) -> bool:
        return False

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int, bool]:
        num_new = max(self.num_available(request) - num_computed_tokens, 0)
        return num_new, self.in_background and num_new > 0

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        if num_external_tokens:
            stop = self.num_available(request)
            ids = blocks.get_block_ids()[0][:]
            self.loads.append(Load(request, ids, stop - num_external_tokens, stop))

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        return KVConnectorMetadata()

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, None]:
        return self.keeps_finished, None

    # The worker's side is `ConnectedEngine`.
    def start_load_kv(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError

    wait_for_layer_load = save_kv_layer = wait_for_save = start_load_kv


class ConnectedEngine(Engine):
    """An engine whose worker loads KV from the store.

    Attributes:
        loading: loads in the background that have not arrived.
        news: what the worker will report with its next output.
        broken: requests whose next load writes nothing and is reported as failed.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        assert isinstance(self.scheduler.connector, RemoteStore)
        self.store = self.scheduler.connector
        self.loading: list[Load] = []
        self.news = KVConnectorOutput()
        self.broken: set[str] = set()

    def arrive(self) -> None:
        """Let the loads in the background arrive: not ordered with the steps in flight."""
        for load in self.loading:
            self._receive(load)
        ids = {load.request.request_id for load in self.loading}
        self.news.finished_recving = (self.news.finished_recving or set()) | ids
        self.loading = []

    def sent(self, *requests: Request) -> None:
        """The blocks of finished requests have been sent."""
        self.news.finished_sending = {request.request_id for request in requests}

    def step(self) -> SchedulerOutput:
        scheduled = super().step()
        self.loading += self.store.loads
        self.store.loads = []
        return scheduled

    def execute(self, scheduled: SchedulerOutput) -> ModelRunnerOutput:
        if not self.store.in_background:
            assert not self.late
            for load in self.store.loads:
                self._receive(load)
            self.store.loads = []
        invalid = frozenset(self.news.invalid_block_ids)
        output = self.worker.execute(scheduled, self.requests, invalid)
        output.kv_connector_output, self.news = self.news, KVConnectorOutput()
        return output

    def _receive(self, load: Load) -> None:
        if load.request.request_id in self.broken:
            block_size = self.scheduler.block_size
            invalid = load.blocks[load.start // block_size : load.stop // block_size]
            self.news.invalid_block_ids |= set(invalid)
            self.broken.remove(load.request.request_id)
        else:
            self.worker.load(load.request, load.blocks, load.start, load.stop)
