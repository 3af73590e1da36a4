# SPDX-License-Identifier: Apache-2.0
"""The engine core's loop around a scheduler, with a worker whose KV memory is a shadow.

For each token that it computes, :class:`ShadowWorker` writes into the token's slot what real KV
depends on: a fingerprint of the whole prefix. Before it samples, it reads back every slot of the
request's prefix. So a wrong, stale, shared or never computed KV block cannot go unnoticed.
"""

import random
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.sched.async_scheduler import AsyncScheduler as VllmAsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler as VllmScheduler
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from vllm_radix.cache.block_pool import RadixBlockPool
from vllm_radix.cache.manager import RadixGroupManager, RadixKVCacheManager
from vllm_radix.tree import Namespace, RadixTree

UNKNOWN = -1
"""A draft token that the scheduler does not know: a placeholder."""

UNWRITTEN = 0
"""What a slot holds before anybody computed its KV."""


def origin(request: Request) -> int:
    """The fingerprint of a request's empty prefix: whatever its KV depends on besides tokens."""
    lora = request.lora_request
    adapter = (lora.lora_name, lora.lora_int_id, lora.lora_path) if lora else None
    return hash((adapter, request.cache_salt))


def successor(fingerprint: int, token: int, items: tuple[str, ...] = ()) -> int:
    """The fingerprint of a prefix that is one token, and the items there, longer."""
    return hash((fingerprint, token, items))


def items_at(request: Request, position: int) -> tuple[str, ...]:
    """What images and the like stand at a position of a request."""
    return tuple(
        feature.identifier
        for feature in request.mm_features
        if 0 <= position - feature.mm_position.offset < feature.mm_position.length
    )


@dataclass
class Row:
    """What a model runner keeps of a request between two steps."""

    request: Request
    tokens: list[int]
    blocks: list[int]
    num_computed: int
    drafts: list[int] = field(default_factory=list)
    failed: bool = False
    """Whether its last step worked on KV that had failed to load."""


class ShadowWorker:
    """Executes scheduler outputs on a KV memory of fingerprints.

    Args:
        block_size: tokens in a block.
        vocab_size: sampled tokens are below this. Few, so that requests often continue alike.
        num_drafts: draft tokens proposed after each sampled one.
        seed: for the quality of the drafts.
    """

    def __init__(
        self, block_size: int, vocab_size: int = 3, num_drafts: int = 0, seed: int = 0
    ) -> None:
        self.block_size = block_size
        self.vocab_size = vocab_size
        self.num_drafts = num_drafts
        self.memory: dict[int, int] = {}
        """Fingerprint by slot."""
        self.rows: dict[str, Row] = {}
        self.num_computed_tokens = 0
        """How many tokens all steps together computed."""
        self._random = random.Random(seed)

    def execute(
        self,
        scheduled: SchedulerOutput,
        requests: dict[str, Request],
        invalid: frozenset[int] = frozenset(),
    ) -> ModelRunnerOutput:
        """Run one step.

        Args:
            scheduled: what to compute.
            requests: all requests. The worker only looks at what a request's KV depends on.
            invalid: blocks that failed to load. The scheduler hears of them with the output, and
                whatever was computed from them counts for nothing.
        """
        for copy in scheduled.kv_cache_block_copies or ():
            for offset in range(self.block_size):
                source = copy.src_block_id * self.block_size + offset
                target = copy.dst_block_id * self.block_size + offset
                self.memory[target] = self.memory.get(source, UNWRITTEN)
        self._update_rows(scheduled, requests)
        inputs = {
            request_id: self._inputs(request_id, num_tokens, scheduled)
            for request_id, num_tokens in scheduled.num_scheduled_tokens.items()
        }
        for request_id in inputs:
            self.rows[request_id].failed = not invalid.isdisjoint(self.rows[request_id].blocks)
        # As in each layer of a model: everybody writes, then everybody reads.
        written: dict[int, str] = {}
        for request_id, (tokens, _) in inputs.items():
            row = self.rows[request_id]
            for position, fingerprint in enumerate(self._prefix(row, tokens), 1):
                if position > row.num_computed:
                    slot = self._slot(row, position - 1)
                    assert slot not in written, f"{request_id} and {written[slot]} write {slot}"
                    written[slot] = request_id
                    self.memory[slot] = UNWRITTEN if row.failed else fingerprint
        sampled = [self._sample(request_id, *inputs[request_id]) for request_id in inputs]
        self.num_computed_tokens += scheduled.total_num_scheduled_tokens
        return ModelRunnerOutput(
            req_ids=list(inputs),
            req_id_to_index={request_id: i for i, request_id in enumerate(inputs)},
            sampled_token_ids=sampled,
        )

    def load(self, request: Request, blocks: list[int], start: int, stop: int) -> None:
        """Write the KV of a request's tokens at ``[start, stop)`` without computing it."""
        row = Row(request, list(request.all_token_ids), blocks, 0)
        for position, fingerprint in enumerate(self._prefix(row)[:stop]):
            if position >= start:
                self.memory[self._slot(row, position)] = fingerprint

    def next_token(self, request: Request, fingerprint: int) -> int:
        """What the model samples after a prefix: the same for whoever has the same seed."""
        assert request.sampling_params is not None
        return hash((fingerprint, request.sampling_params.seed)) % self.vocab_size

    def continuation(self, request: Request, num_tokens: int) -> list[int]:
        """What the model generates for a request's prompt."""
        row = Row(request, list(request.prompt_token_ids or ()), [], 0)
        for _ in range(num_tokens):
            row.tokens.append(self.next_token(request, self._prefix(row)[-1]))
        return row.tokens[len(row.tokens) - num_tokens :]

    def _update_rows(self, scheduled: SchedulerOutput, requests: dict[str, Request]) -> None:
        for request_id in scheduled.finished_req_ids:
            self.rows.pop(request_id, None)
        for new in scheduled.scheduled_new_reqs:
            tokens = new.prefill_token_ids or new.prompt_token_ids
            assert tokens is not None
            self.rows[new.req_id] = Row(
                requests[new.req_id], list(tokens), new.block_ids[0][:], new.num_computed_tokens
            )
        cached = scheduled.scheduled_cached_reqs
        for request_id, ids, num_computed in zip(
            cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
        ):
            row = self.rows[request_id]
            if request_id in cached.resumed_req_ids:
                assert ids is not None
                row.blocks = ids[0][:]
                row.num_computed = num_computed
                row.tokens = cached.all_token_ids[request_id][:]
                row.drafts = []
            elif ids is not None:
                row.blocks += ids[0]
            if row.failed:
                row.num_computed = num_computed
            # An asynchronous scheduler counts drafts as computed until it hears otherwise.
            assert num_computed >= row.num_computed

    def _inputs(
        self, request_id: str, num_tokens: int, scheduled: SchedulerOutput
    ) -> tuple[list[int], list[int]]:
        """The tokens that a request computes in this step, and the drafts among them."""
        row = self.rows[request_id]
        drafts = scheduled.scheduled_spec_decode_tokens.get(request_id, [])
        if row.drafts and all(token == UNKNOWN for token in drafts):
            drafts = (row.drafts + [UNKNOWN] * len(drafts))[: len(drafts)]
        num_known = num_tokens - len(drafts)
        known = row.tokens[row.num_computed : row.num_computed + num_known]
        assert len(known) == num_known, f"{request_id} computes tokens that it does not have"
        assert len(row.blocks) * self.block_size >= row.num_computed + num_tokens
        assert 0 not in row.blocks and len(set(row.blocks)) == len(row.blocks)
        return known + drafts, drafts

    def _sample(self, request_id: str, tokens: list[int], drafts: list[int]) -> list[int]:
        row = self.rows[request_id]
        if row.failed:
            return [0]
        num_known = row.num_computed + len(tokens) - len(drafts)
        self._verify(row, num_known)
        row.num_computed = num_known
        if num_known < len(row.tokens):
            return []  # a chunk of a prefill
        out: list[int] = []
        for draft in [*drafts, None]:
            (*_, fingerprint) = self._prefix(row)
            token = self.next_token(row.request, fingerprint)
            out.append(token)
            row.tokens.append(token)
            if token != draft:
                break
            row.num_computed += 1
        self._verify(row, row.num_computed)
        self._propose(row)
        return out

    def _propose(self, row: Row) -> None:
        """Draft tokens of which a random number, from the first, are right."""
        num_right = self._random.randint(0, self.num_drafts)
        row.drafts = []
        for i in range(self.num_drafts):
            (*_, fingerprint) = self._prefix(row, row.tokens[row.num_computed :] + row.drafts)
            token = self.next_token(row.request, fingerprint)
            row.drafts.append(token if i < num_right else (token + 1) % self.vocab_size)

    def _verify(self, row: Row, num_tokens: int) -> None:
        """Check that the first ``num_tokens`` of a request have their KV where it looks."""
        for position, expected in enumerate(self._prefix(row)[:num_tokens]):
            slot = self._slot(row, position)
            assert self.memory.get(slot, UNWRITTEN) == expected, (
                f"{row.request.request_id}: wrong KV for token {position} of {num_tokens}, in "
                f"block {slot // self.block_size}"
            )

    def _prefix(self, row: Row, computing: list[int] | None = None) -> list[int]:
        """Fingerprints of all prefixes of a request, or of what it has computed and computes."""
        tokens = row.tokens if computing is None else row.tokens[: row.num_computed] + computing
        fingerprint = origin(row.request)
        prefix = []
        for position, token in enumerate(tokens):
            items = items_at(row.request, position) if row.request.mm_features else ()
            fingerprint = successor(fingerprint, token, items)
            prefix.append(fingerprint)
        return prefix

    def _slot(self, row: Row, position: int) -> int:
        block = row.blocks[position // self.block_size]
        return block * self.block_size + position % self.block_size


class Engine:
    """A scheduler and a shadow worker.

    Args:
        scheduler: the scheduler.
        late: whether the worker executes a step only when its output is asked for, rather than
            as soon as it is scheduled. It makes a difference where steps are in flight.
        vocab_size: as for the worker.
        seed: for the worker.
    """

    def __init__(
        self, scheduler: VllmScheduler, *, late: bool = False, vocab_size: int = 3, seed: int = 0
    ) -> None:
        self.scheduler = scheduler
        self.late = late
        self.depth = 2 if isinstance(scheduler, VllmAsyncScheduler) else 1
        """How many steps are scheduled before the output of the first is processed."""
        self.worker = ShadowWorker(
            scheduler.block_size, vocab_size, num_drafts=scheduler.num_spec_tokens, seed=seed
        )
        self.requests: dict[str, Request] = {}
        self.tokens: dict[str, list[int]] = {}
        """What each request generated, as its client sees it."""
        self.finished: set[str] = set()
        self.held: list[KVCacheBlock] = []
        """Blocks that somebody besides the requests holds, as a connector may."""
        self.outputs: list[EngineCoreOutput] = []
        self.stats: list[Any] = []
        self.in_flight: deque[tuple[SchedulerOutput, ModelRunnerOutput | None]] = deque()
        self._origins: dict[Namespace, int] = {}
        self.now = 0.0
        """Seconds, of which each step takes a hundredth: real time would make tests flaky."""
        admission = getattr(scheduler, "admission", None)
        if admission is not None:
            admission.clock = lambda: self.now

    def add(self, *requests: Request) -> Request:
        """Add requests; returns the last."""
        for request in requests:
            self.requests[request.request_id] = request
            self.tokens[request.request_id] = []
            self.scheduler.add_request(request)
        return requests[-1]

    def abort(self, request: Request) -> None:
        self.scheduler.finish_requests(request.request_id, RequestStatus.FINISHED_ABORTED)
        self.finished.add(request.request_id)

    def step(self) -> SchedulerOutput:
        """Schedule a step, and process the output of an earlier one if it is time."""
        self._note_origins()
        self.now += 0.01
        scheduled = self.scheduler.schedule()
        self.in_flight.append((scheduled, None if self.late else self.execute(scheduled)))
        while len(self.in_flight) >= self.depth or (
            self.in_flight and not scheduled.total_num_scheduled_tokens
        ):
            self.process_output()
        return scheduled

    def execute(self, scheduled: SchedulerOutput) -> ModelRunnerOutput:
        return self.worker.execute(scheduled, self.requests)

    def process_output(self) -> None:
        """Process the output of the oldest step in flight."""
        scheduled, output = self.in_flight.popleft()
        if output is None:
            output = self.execute(scheduled)
        for batch in self.scheduler.update_from_output(scheduled, output).values():
            self.outputs += batch.outputs
            if batch.scheduler_stats is not None:
                self.stats.append(batch.scheduler_stats)
            for one in batch.outputs:
                self.tokens[one.request_id] += one.new_token_ids
                if one.finish_reason is not None:
                    self.finished.add(one.request_id)
        if self.worker.num_drafts and self.depth == 1:
            rows = [self.worker.rows[request_id] for request_id in output.req_ids]
            self.scheduler.update_draft_token_ids(
                DraftTokenIds(output.req_ids, [row.drafts[:] for row in rows])
            )

    def run(self, max_steps: int = 2000) -> None:
        """Step until nothing is left to do."""
        for _ in range(max_steps):
            if not self.scheduler.has_unfinished_requests() and not self.in_flight:
                self.step()  # so that the worker hears of what finished last
                return
            self.step()
        raise AssertionError(f"no end after {max_steps} steps")

    def generate(self, *requests: Request) -> list[list[int]]:
        """Run requests to their end; returns their tokens."""
        self.add(*requests)
        self.run()
        return [self.tokens[request.request_id] for request in requests]

    # ------------------------------------------------------------------ our cache

    @property
    def manager(self) -> RadixKVCacheManager:
        manager = self.scheduler.kv_cache_manager
        assert isinstance(manager, RadixKVCacheManager)
        return manager

    @property
    def group(self) -> RadixGroupManager:
        (group,) = self.manager.coordinator.single_type_managers
        assert isinstance(group, RadixGroupManager)
        return group

    @property
    def pool(self) -> RadixBlockPool:
        return self.group.block_pool

    @property
    def tree(self) -> RadixTree:
        return self.pool.tree

    @property
    def num_used_blocks(self) -> int:
        pool = self.scheduler.kv_cache_manager.block_pool
        return pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()

    @property
    def num_duplicated_blocks(self) -> int:
        """Blocks of the tree that stay for requests which compute the same in their own."""
        in_use = {block for table in self.group.req_to_blocks.values() for block in table.ids}
        nodes = [node for node in self.tree.all_nodes() if node.lock_count]
        return len({block for node in nodes for block in node.blocks} - in_use)

    def blocks(self, request: Request) -> list[int]:
        """The block table of a request."""
        return self.manager.get_block_ids(request.request_id)[0][:]

    def num_cached(self, request: Request) -> int:
        """How many leading blocks of a request a match would find now."""
        return self.manager.get_computed_blocks(request)[1] // self.scheduler.block_size

    def check(self) -> None:
        """Every block is accounted for, and every cached block holds the KV that it stands for."""
        self.pool.check()
        tables = [table.ids for table in self.group.req_to_blocks.values()]
        in_use = {block for ids in tables for block in ids}
        in_use |= {block.block_id for block in self.held}
        in_use |= {b.block_id for _, blocks in self.scheduler.deferred_frees for b in blocks}
        locked = {
            block for node in self.tree.all_nodes() if node.lock_count for block in node.blocks
        }
        assert all(self.pool.ref_count(block) > 0 for block in in_use)
        assert self.num_used_blocks == len(in_use | locked)
        num_tables = Counter(block for ids in tables for block in ids)
        for block, number in num_tables.items():
            # Only what the tree owns is shared.
            assert number == 1 or self.tree.owner(block) is not None
            assert self.pool.ref_count(block) >= number
        num_handles = sum(t.handle is not None for t in self.group.req_to_blocks.values())
        num_locks = sum(node.lock_count for node in self.tree if node.parent is None)
        num_deferred = len(self.scheduler.deferred_frees)
        assert num_locks <= num_handles + num_deferred + len(self.held)
        if not (self.late and self.in_flight):
            self._check_memory()

    def check_idle(self) -> None:
        """Nothing runs: nothing is locked, and all memory can be had."""
        self.check()
        assert not self.scheduler.requests
        assert self.num_used_blocks == 0
        assert self.manager.usage == 0.0
        assert all(node.lock_count == 0 for node in self.tree.all_nodes())

    def _note_origins(self) -> None:
        """Whoever shares a namespace must agree on what KV depends on besides tokens."""
        if isinstance(self.scheduler.kv_cache_manager, RadixKVCacheManager):
            for request in self.scheduler.requests.values():
                namespace = self.manager._keys.namespace(request)
                assert self._origins.setdefault(namespace, origin(request)) == origin(request)

    def _check_memory(self) -> None:
        block_size = self.scheduler.block_size
        prefixes: dict[Any, list[int | None]] = {}
        for node in self.tree:
            if node.parent is None:
                prefixes[node] = []
                fingerprint = self._origins[node.namespace]  # type: ignore[attr-defined]
            else:
                above = prefixes[node.parent]
                fingerprint = above[-1] if above else self._origins[_namespace(node)]
                prefixes[node] = above[:]
            for token in memoryview(bytes(node.edge)).cast("i"):
                # What a label stands for is known only to those who asked for it. They will see.
                known = fingerprint is not None and token >= 0
                fingerprint = successor(fingerprint, token) if known else None
                prefixes[node].append(fingerprint)
            first = node.start // block_size
            for number, block in enumerate(node.blocks, first):
                start = number * block_size
                for position in range(start, min(start + block_size, node.end)):
                    slot = block * block_size + position - start
                    assert prefixes[node][position] in (None, self.worker.memory.get(slot)), (
                        f"block {block} is cached, but has no KV for token {position}"
                    )


def _namespace(node: Any) -> Namespace:
    while node.parent is not None:
        node = node.parent
    return node.namespace
