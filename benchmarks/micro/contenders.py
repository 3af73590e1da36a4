# SPDX-License-Identifier: Apache-2.0
"""The two sides: vLLM's scheduler on its own prefix cache, and on the tree."""

import itertools
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.multimodal.inputs import MultiModalFeatureSpec
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import BlockHash, get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler as StockScheduler
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

import vllm_radix

BLOCK_SIZE = 16
"""Tokens in a block, vLLM's default."""
CHUNK_TOKENS = 8192
"""The most tokens that a step schedules."""
MAX_MODEL_LEN = 262_144
VOCABULARY_SIZE = 128_256

_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 1,
    "num_hidden_layers": 1,
    "num_key_value_heads": 1,
    "max_position_embeddings": MAX_MODEL_LEN,
    "vocab_size": VOCABULARY_SIZE,
    "torch_dtype": "float32",
}

HashAlgorithm = Literal["sha256", "xxhash"]
BlockHasher = Callable[[Request], list[BlockHash]]


@dataclass
class Contender:
    """One side: a scheduler, and what the engine core would hash its prompts with."""

    name: str
    scheduler: StockScheduler
    block_hasher: BlockHasher | None
    _ids: "itertools.count[int]" = field(default_factory=itertools.count)

    def request(
        self,
        tokens: list[int],
        max_tokens: int = 1,
        items: Sequence[MultiModalFeatureSpec] = (),
    ) -> Request:
        """A new request, hashed where this side needs it. ``tokens`` is the prompt.

        ``items`` are the images in it.
        """
        return Request(
            request_id=str(next(self._ids)),
            prompt_token_ids=tokens,
            sampling_params=_sampling_params(max_tokens),
            pooling_params=None,
            block_hasher=self.block_hasher,
            mm_features=list(items),
        )

    def arrive(
        self,
        tokens: list[int],
        max_tokens: int = 1,
        items: Sequence[MultiModalFeatureSpec] = (),
    ) -> Request:
        """A request that waits to be scheduled."""
        request = self.request(tokens, max_tokens, items)
        self.scheduler.add_request(request)
        return request

    def sampled(self, step: SchedulerOutput) -> ModelRunnerOutput:
        """What a model might return for ``step``: token 1 for each request whose prefill ends."""
        ids = list(step.num_scheduled_tokens)
        requests = self.scheduler.requests
        return ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={id_: index for index, id_ in enumerate(ids)},
            sampled_token_ids=[[] if requests[id_].is_prefill_chunk else [1] for id_ in ids],
        )

    def step(self) -> SchedulerOutput:
        """Schedule and finish one step."""
        step = self.scheduler.schedule()
        self.scheduler.update_from_output(step, self.sampled(step))
        return step

    def run(self, tokens: list[int], items: Sequence[MultiModalFeatureSpec] = ()) -> None:
        """Serve one request from beginning to end: its prompt is cached then."""
        self.arrive(tokens, items=items)
        while self.scheduler.has_unfinished_requests():
            self.step()

    def abort(self, request: Request) -> None:
        """End a request, whether it waits or runs."""
        self.scheduler.finish_requests(request.request_id, RequestStatus.FINISHED_ABORTED)


def ours(num_blocks: int, max_num_seqs: int = 16) -> Contender:
    """vLLM's scheduler on the tree."""
    return _contender("ours", vllm_radix.Scheduler, "sha256", num_blocks, max_num_seqs)


def stock(
    num_blocks: int, max_num_seqs: int = 16, hash_algorithm: HashAlgorithm = "sha256"
) -> Contender:
    """vLLM's scheduler as it is; sha256 is what it hashes with unless told otherwise."""
    name = "stock" if hash_algorithm == "sha256" else f"stock, {hash_algorithm}"
    return _contender(name, StockScheduler, hash_algorithm, num_blocks, max_num_seqs)


def both(num_blocks: int, max_num_seqs: int = 16) -> list[Contender]:
    """Ours and stock, alike in everything else."""
    return [ours(num_blocks, max_num_seqs), stock(num_blocks, max_num_seqs)]


def random_tokens(num_tokens: int, *seed: int) -> list[int]:
    """The same tokens for the same seed, as distinct Python objects."""
    rng = np.random.default_rng(seed)
    tokens: list[int] = rng.integers(10, VOCABULARY_SIZE, num_tokens).tolist()
    return tokens


def as_received(*parts: Sequence[int]) -> list[int]:
    """The concatenation of ``parts``, decoded as the engine core decodes a prompt.

    Its integers are objects of their own: requests of an engine share none.
    """
    packed = msgspec.msgpack.encode([token for part in parts for token in part])
    tokens: list[int] = msgspec.msgpack.decode(packed, type=list[int])
    return tokens


def _contender(
    name: str,
    scheduler_cls: type,
    hash_algorithm: HashAlgorithm,
    num_blocks: int,
    max_num_seqs: int,
) -> Contender:
    config = _vllm_config(max_num_seqs)
    config.cache_config.num_gpu_blocks = num_blocks
    spec = FullAttentionSpec(
        block_size=BLOCK_SIZE, num_kv_heads=1, head_size=64, dtype=torch.float32
    )
    scheduler = scheduler_cls(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        ),
        structured_output_manager=_structured_output_manager(max_num_seqs),
        block_size=BLOCK_SIZE,
        hash_block_size=BLOCK_SIZE,
        log_stats=True,
    )
    hasher = None
    # As the engine core decides it.
    if getattr(scheduler, "needs_block_hashes", True):
        hasher = _block_hasher(hash_algorithm)
    return Contender(name, scheduler, hasher)


@cache
def _vllm_config(max_num_seqs: int) -> VllmConfig:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(_MODEL))
        model = ModelConfig(model=folder, skip_tokenizer_init=True, max_model_len=MAX_MODEL_LEN)
    config = VllmConfig(
        model_config=model,
        cache_config=CacheConfig(block_size=BLOCK_SIZE, enable_prefix_caching=True),
        scheduler_config=SchedulerConfig(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=CHUNK_TOKENS,
            max_model_len=MAX_MODEL_LEN,
            is_encoder_decoder=False,
            async_scheduling=False,
        ),
        parallel_config=ParallelConfig(),
        device_config=DeviceConfig(device="cpu"),
    )
    register_all_kvcache_specs(config)  # type: ignore[no-untyped-call]
    return config


@cache
def _structured_output_manager(max_num_seqs: int) -> StructuredOutputManager:
    return StructuredOutputManager(_vllm_config(max_num_seqs))


@cache
def _block_hasher(algorithm: HashAlgorithm) -> BlockHasher:
    hash_function = get_hash_fn_by_name(algorithm)
    init_none_hash(hash_function)
    return get_request_block_hasher(BLOCK_SIZE, hash_function)


@cache
def _sampling_params(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True)
