# SPDX-License-Identifier: Apache-2.0
"""The classes behind ``--scheduler-cls vllm_radix.Scheduler``."""

from functools import partial
from typing import Any

from vllm.config import VllmConfig
from vllm.multimodal.utils import get_mm_features_in_window
from vllm.v1.core.sched import scheduler as vllm_scheduler
from vllm.v1.core.sched.async_scheduler import AsyncScheduler as VllmAsyncScheduler
from vllm.v1.core.sched.interface import SchedulerInterface
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler as VllmScheduler
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.request import Request, StreamingUpdate

from vllm_radix import compat
from vllm_radix.cache.granularity import why_whole_blocks
from vllm_radix.cache.manager import (
    RadixKVCacheManager,
    why_unsupported,
)
from vllm_radix.config import RadixConfig
from vllm_radix.scheduling.admission import AdmissionControl, OpenGate
from vllm_radix.scheduling.probe import BlockHashProbe, EncoderCacheProbe, TreeProbe
from vllm_radix.scheduling.queue import PrefixAffinityQueue
from vllm_radix.scheduling.retention import Retention, wishes_of

logger = compat.get_logger(__name__)

MAX_PINNED_SHARE = 0.25
"""Share of the KV blocks that pinned prefixes may have, all together."""


class RadixMixin(VllmScheduler):
    """What both schedulers add to vLLM's: the tree behind the KV cache manager, and the queue."""

    needs_block_hashes = True
    """Whether the engine core has to hash prompts. It asks after it has built the scheduler."""

    def __init__(
        self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, *args: Any, **kwargs: Any
    ) -> None:
        config = RadixConfig.from_additional_config(vllm_config.additional_config)
        whole_blocks = "it is turned off"
        if config.token_granular:
            whole_blocks = why_whole_blocks(vllm_config) or ""
            config = config.model_copy(update={"token_granular": not whole_blocks})
        compat.install_engine_hooks()
        make_manager = partial(RadixKVCacheManager, radix_config=config)
        with compat.substituted(vllm_scheduler, "KVCacheManager", make_manager):
            super().__init__(vllm_config, kv_cache_config, *args, **kwargs)
        manager = self.kv_cache_manager
        self.radix_manager = manager if isinstance(manager, RadixKVCacheManager) else None
        self.admission: AdmissionControl | None = None
        if self.radix_manager is not None:
            self.admission = AdmissionControl(
                self.radix_manager, lambda: self.running, self._can_go_on
            )
            self.retention = Retention(
                self.radix_manager, int(MAX_PINNED_SHARE * kv_cache_config.num_blocks)
            )
            self.radix_manager.set_importance(lambda request: wishes_of(request).priority)
        self._install_queue(config)
        if self.radix_manager is None:
            reason = why_unsupported(
                kv_cache_config,
                enable_caching=self.cache_config.enable_prefix_caching,
                num_hash_lookahead_tokens=getattr(self, "num_hash_lookahead_tokens", 0),
            )
            logger.info("vllm-radix: vLLM's own KV cache manager serves this model: %s.", reason)
            return
        self.needs_block_hashes = not config.skip_hashing or compat.hashes_have_consumers(
            vllm_config
        )
        logger.info(
            "vllm-radix: the prefix cache is a radix tree (%d blocks of %d tokens, %s eviction, "
            "%s schedule, prompts are %shashed).",
            kv_cache_config.num_blocks,
            self.block_size,
            config.eviction,
            config.schedule,
            "" if self.needs_block_hashes else "not ",
        )
        if whole_blocks:
            logger.info("vllm-radix: prefixes are reused in whole blocks: %s.", whole_blocks)

    def _install_queue(self, config: RadixConfig) -> None:
        """Replace the queue of the requests that hold no blocks, if the options say so."""
        self.affinity_queue: PrefixAffinityQueue | None = None
        self.hash_probe: BlockHashProbe | None = None
        if config.schedule == "fcfs" or not self.cache_config.enable_prefix_caching:
            return
        if self.radix_manager is None:
            self.hash_probe = BlockHashProbe(self.kv_cache_manager, self.hash_block_size)
        self.affinity_queue = PrefixAffinityQueue(
            self.hash_probe or TreeProbe(self.radix_manager),  # type: ignore[arg-type]
            self.admission or OpenGate(),
            EncoderCacheProbe(lambda: self.encoder_cache_manager),
            patience=config.patience,
            by_priority=self.policy == SchedulingPolicy.PRIORITY,
        )
        self.waiting = self.affinity_queue

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        waiting = self.affinity_queue
        if waiting is not None:
            waiting.start_step()
        if self.admission is not None:
            self.admission.start_step(
                waiting.ordered() if waiting is not None else (),
                self.retention.pinned(self.admission.clock()),
            )
        scheduled = super().schedule(*args, **kwargs)
        if not self.use_v2_model_runner:
            for new in scheduled.scheduled_new_reqs:
                # vLLM leaves out the pixels of images that are cached now. But this worker gets
                # them once only, and needs them if preemption and eviction come in between.
                new.mm_features = self.requests[new.req_id].mm_features
        return scheduled

    def _try_schedule_encoder_inputs(
        self,
        request: Request,
        num_computed_tokens: int,
        num_new_tokens: int,
        encoder_compute_budget: int,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if self._would_split_an_item(request, num_computed_tokens, num_new_tokens):
            return [], 0, encoder_compute_budget, [], []
        return super()._try_schedule_encoder_inputs(
            request, num_computed_tokens, num_new_tokens, encoder_compute_budget, *args, **kwargs
        )

    def _would_split_an_item(self, request: Request, start: int, num_tokens: int) -> bool:
        """Whether a chunk at ``start`` has a part of an item, of which it must have all the rest.

        vLLM 0.32 sees to it for items that begin after the first token of a chunk, and 0.33 for
        those that begin with it, too: there a match ends if another image follows the same text.
        Items of which a part is cached are nobody's but ours.
        """
        config, speculative = self.scheduler_config, self.vllm_config.speculative_config
        if self.radix_manager is None or not config.disable_chunked_mm_input:
            return False
        # What is left in an empty step for one of several requests. vLLM has to split longer items.
        longest = min(
            self.max_num_scheduled_tokens,
            config.max_num_batched_tokens
            - (speculative.max_num_new_slots_for_drafting if speculative is not None else 0),
            config.long_prefill_token_threshold or config.max_num_batched_tokens,
        )
        first, last = get_mm_features_in_window(request.mm_features, start, start + 1)
        positions = [feature.mm_position for feature in request.mm_features[first:last]]
        return any(num_tokens < p.offset + p.length - start <= longest for p in positions)

    def _can_go_on(self) -> bool:
        """Whether some running request has something to compute that is not in flight already."""
        return any(
            not request.num_output_placeholders
            or request.num_computed_tokens + 2 - request.num_output_placeholders
            < request.num_prompt_tokens + request.max_tokens
            for request in self.running
        )

    def on_adapter_reloaded(self, lora_int_id: int) -> None:
        """The engine core loaded other weights for an adapter that it had."""
        if self.radix_manager is not None:
            self.radix_manager.on_adapter_reloaded(lora_int_id)
            if self.affinity_queue is not None:
                self.affinity_queue.look_again()

    def add_request(self, request: Request) -> None:
        # Under the name of a request that is here already comes more input for it.
        if self.radix_manager is not None and request.request_id not in self.requests:
            self.radix_manager.prepare(request)
            if self.admission is not None and self.affinity_queue is not None:
                self.admission.on_arrival(request)
        super().add_request(request)

    def _update_request_as_session(self, session: Request, update: StreamingUpdate) -> None:
        if self.radix_manager is not None:
            self.radix_manager.forget_key(session)
            # vLLM 0.32 counts drafted tokens that a stop cut off as computed. What comes next would
            # be cached with their KV.
            session.num_computed_tokens = min(
                session.num_computed_tokens, max(session.num_tokens - 1, 0)
            )
        super()._update_request_as_session(session, update)
        if self.affinity_queue is not None:
            self.affinity_queue.look_again_at(session)

    def _free_request_blocks(self, request: Request) -> None:
        if self.hash_probe is not None:
            self.hash_probe.forget(request)
        if self.radix_manager is None or self.admission is None:
            super()._free_request_blocks(request)
            return
        self.radix_manager.keep_computed_tokens(request)
        if not request.is_finished():
            super()._free_request_blocks(request)
            return
        handle = self.radix_manager.handle(request)
        if self.affinity_queue is not None:
            self.admission.on_end(request, handle)
        super()._free_request_blocks(request)
        # Giving the blocks back is a use, from which a time to live counts.
        self.retention.on_end(request, handle, self.admission.clock())


class RadixScheduler(RadixMixin, VllmScheduler):
    """vLLM's scheduler on the radix tree."""


class AsyncRadixScheduler(RadixMixin, VllmAsyncScheduler):
    """vLLM's asynchronous scheduler on the radix tree."""


class Scheduler:
    """Names the plugin to vLLM; constructing it gives the scheduler that the config calls for."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        # Constructing a subclass would give one of ours all the same.
        raise TypeError(
            "vllm_radix.Scheduler only picks a class: derive from RadixScheduler or "
            "AsyncRadixScheduler of vllm_radix.scheduling.scheduler instead."
        )

    def __new__(cls, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> SchedulerInterface:  # type: ignore[misc]
        scheduler_cls: type[VllmScheduler] = RadixScheduler
        if vllm_config.scheduler_config.async_scheduling:
            scheduler_cls = AsyncRadixScheduler
        if vllm_config.model_config.is_diffusion:
            scheduler_cls = _diffusion_scheduler(vllm_config)
        return scheduler_cls(vllm_config, *args, **kwargs)


def _diffusion_scheduler(vllm_config: VllmConfig) -> type[VllmScheduler]:
    """vLLM picks a scheduler of its own for diffusion models, unless a user names another."""
    logger.info("vllm-radix: vLLM's own scheduler serves this model: it is a diffusion model.")
    if not vllm_config.scheduler_config.async_scheduling:
        return VllmScheduler
    from vllm.v1.core.sched.diffusion_scheduler import DiffusionAsyncScheduler

    return DiffusionAsyncScheduler
