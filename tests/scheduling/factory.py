# SPDX-License-Identifier: Apache-2.0
"""vLLM's real schedulers and requests, without a model: only the configuration of one."""

import functools
import itertools
import json
import os
import tempfile
from pathlib import Path
from typing import Any

# The configuration is local; nothing here may wait for a hub.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from vllm.config import (
    CacheConfig,
    KVEventsConfig,
    KVTransferConfig,
    ModelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler as VllmScheduler
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

import vllm_radix
from vllm_radix.cache.manager import RadixKVCacheManager

BLOCK_SIZE = 4
MAX_MODEL_LEN = 512
NUM_ENCODER_TOKENS = 100_000

# A process has one seed for the hashes of blocks.
init_none_hash(sha256)

_request_ids = itertools.count()
_folder = tempfile.TemporaryDirectory(prefix="vllm-radix-tests-")


@functools.cache
def model_folder() -> Path:
    """A folder that vLLM takes for a small Llama. It has no weights and no tokenizer."""
    folder = Path(_folder.name)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "vocab_size": 32768,
        "max_position_embeddings": MAX_MODEL_LEN,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def full_attention(block_size: int = BLOCK_SIZE) -> KVCacheSpec:
    return FullAttentionSpec(
        block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32
    )


def sliding_window(window: int = 2 * BLOCK_SIZE, block_size: int = BLOCK_SIZE) -> KVCacheSpec:
    return SlidingWindowSpec(
        block_size=block_size,
        num_kv_heads=1,
        head_size=1,
        dtype=torch.float32,
        sliding_window=window,
    )


def make_configs(
    *,
    num_blocks: int = 65,
    block_size: int = BLOCK_SIZE,
    max_num_seqs: int = 16,
    max_num_batched_tokens: int = MAX_MODEL_LEN,
    max_model_len: int = MAX_MODEL_LEN,
    long_prefill_token_threshold: int = 0,
    policy: str = "fcfs",
    async_scheduling: bool = False,
    num_spec_tokens: int = 0,
    enable_caching: bool = True,
    kv_events: bool = False,
    kv_transfer: KVTransferConfig | None = None,
    specs: tuple[KVCacheSpec, ...] | None = None,
    radix: Any = None,
) -> tuple[VllmConfig, KVCacheConfig]:
    """What the engine core passes to a scheduler. One of the blocks is the null block."""
    speculative_config = None
    if num_spec_tokens:
        speculative_config = SpeculativeConfig(
            method="ngram",
            num_speculative_tokens=num_spec_tokens,
            prompt_lookup_min=1,
            prompt_lookup_max=num_spec_tokens,
        )
    vllm_config = VllmConfig(
        model_config=ModelConfig(
            model=str(model_folder()),
            skip_tokenizer_init=True,
            dtype="float32",
            max_model_len=max_model_len,
        ),
        scheduler_config=SchedulerConfig(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            long_prefill_token_threshold=long_prefill_token_threshold,
            is_encoder_decoder=False,
            enable_chunked_prefill=True,
            async_scheduling=False,
            policy=policy,
            watermark=0.0,
        ),
        cache_config=CacheConfig(block_size=block_size, enable_prefix_caching=enable_caching),
        speculative_config=speculative_config,
        kv_transfer_config=kv_transfer,
        kv_events_config=(
            KVEventsConfig(enable_kv_cache_events=True, publisher="null") if kv_events else None
        ),
        additional_config={} if radix is None else {"radix": radix},
    )
    # The CPU platform switches asynchronous scheduling off in the config; schedulers can do it.
    vllm_config.scheduler_config.async_scheduling = async_scheduling
    vllm_config.cache_config.num_gpu_blocks = num_blocks
    register_all_kvcache_specs(vllm_config)
    groups = [
        KVCacheGroupSpec([f"layer.{i}"], spec)
        for i, spec in enumerate(specs or (full_attention(block_size),))
    ]
    return vllm_config, KVCacheConfig(
        num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=groups
    )


def make_scheduler(
    scheduler_cls: Any = vllm_radix.Scheduler, *, block_size: int = BLOCK_SIZE, **options: Any
) -> VllmScheduler:
    """A scheduler as the engine core builds it; the options are those of `make_configs`."""
    vllm_config, kv_cache_config = make_configs(block_size=block_size, **options)
    scheduler: VllmScheduler = scheduler_cls(
        vllm_config=vllm_config,
        kv_cache_config=kv_cache_config,
        structured_output_manager=StructuredOutputManager(vllm_config),
        block_size=block_size,
        hash_block_size=block_size,
        include_finished_set=False,
        log_stats=True,
    )
    # The model takes text alone; with room for encoder outputs, the scheduler takes images too.
    scheduler.max_num_encoder_input_tokens = NUM_ENCODER_TOKENS
    scheduler.encoder_cache_manager = EncoderCacheManager(NUM_ENCODER_TOKENS)
    return scheduler


def make_manager(
    *, num_blocks: int = 65, block_size: int = BLOCK_SIZE, **options: Any
) -> RadixKVCacheManager:
    """Our KV cache manager alone; the options are those of vLLM's."""
    return RadixKVCacheManager(
        KVCacheConfig(
            num_blocks=num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], full_attention(block_size))],
        ),
        max_model_len=MAX_MODEL_LEN,
        scheduler_block_size=block_size,
        hash_block_size=block_size,
        max_in_flight_tokens=MAX_MODEL_LEN,
        log_stats=True,
        **options,
    )


def image(identifier: str, offset: int, length: int) -> MultiModalFeatureSpec:
    """An image that stands at ``[offset, offset + length)`` of a prompt."""
    return MultiModalFeatureSpec(
        data=None,
        modality="image",
        identifier=identifier,
        mm_position=PlaceholderRange(offset=offset, length=length),
    )


def lora(name: str, number: int, path: str | None = None, **options: Any) -> LoRARequest:
    return LoRARequest(name, number, path or f"/adapters/{name}", **options)


def make_request(
    prompt: list[int] | None,
    request_id: str | None = None,
    *,
    max_tokens: int = 16,
    hashed: bool = False,
    block_size: int = BLOCK_SIZE,
    seed: int | None = None,
    sampling: dict[str, Any] | None = None,
    **options: Any,
) -> Request:
    """A request as the engine core makes it; ``hashed`` as where somebody reads block hashes."""
    return Request(
        request_id=request_id or f"request-{next(_request_ids)}",
        prompt_token_ids=prompt,
        sampling_params=SamplingParams(
            max_tokens=max_tokens, ignore_eos=True, seed=seed, **(sampling or {})
        ),
        pooling_params=None,
        block_hasher=get_request_block_hasher(block_size, sha256) if hashed else None,
        **options,
    )
