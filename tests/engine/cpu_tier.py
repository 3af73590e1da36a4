# SPDX-License-Identifier: Apache-2.0
"""A second tier for vLLM's offloading connector that works without an accelerator.

vLLM's own tier copies with CUDA streams. This one copies tensors in this process, and as late as
the contract allows: a store reads its blocks only when it completes, so that a block which is
reused before its store is done ends up wrong in the tier, and a test sees it.
"""

from collections import deque

import torch
from vllm.v1.kv_offload.base import (
    BlockIDsLoadStoreSpec,
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

STEPS_TO_COMPLETE = 3


class CpuTierSpec(CPUOffloadingSpec):
    """vLLM's CPU tier with another worker. One chunk is one block."""

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        return CpuTierWorker(kv_caches, self.num_chunks)


class CpuTierWorker(OffloadingWorker):
    """Copies blocks between the KV cache and tensors of `num_chunks` blocks."""

    def __init__(self, kv_caches: CanonicalKVCaches, num_chunks: int) -> None:
        self._caches = [t.tensor for t in kv_caches.tensors]
        self._tier = [torch.zeros((num_chunks, c.shape[1]), dtype=c.dtype) for c in self._caches]
        self._jobs: deque[tuple[int, int, bool, list[int], list[int]]] = deque()
        self._done: list[int] = []
        self._now = 0

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec
    ) -> bool:
        return self._submit(job_id, src_spec, dst_spec, store=True)

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        return self._submit(job_id, dst_spec, src_spec, store=False)

    def _submit(
        self, job_id: int, blocks: GPULoadStoreSpec, chunks: LoadStoreSpec, store: bool
    ) -> bool:
        assert isinstance(chunks, BlockIDsLoadStoreSpec)
        due = self._now + STEPS_TO_COMPLETE
        self._jobs.append(
            (due, job_id, store, blocks.block_ids.tolist(), chunks.block_ids.tolist())
        )
        return True

    def _complete_first(self) -> None:
        _, job_id, store, blocks, chunks = self._jobs.popleft()
        for cache, tier in zip(self._caches, self._tier, strict=True):
            if store:
                tier[chunks] = cache[blocks]
            else:
                cache[blocks] = tier[chunks]
        self._done.append(job_id)

    def get_finished(self) -> list[TransferResult]:
        self._now += 1
        while self._jobs and self._jobs[0][0] <= self._now:
            self._complete_first()
        done, self._done = self._done, []
        return [TransferResult(job_id, success=True) for job_id in done]

    def wait(self, job_ids: set[int]) -> None:
        while any(job[1] in job_ids for job in self._jobs):
            self._complete_first()
