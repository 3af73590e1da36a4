# SPDX-License-Identifier: Apache-2.0
"""vLLM's schedulers and ours, built as the engine core builds them, but without a model."""

import importlib
import inspect
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.interface import SchedulerInterface
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.structured_output import StructuredOutputManager

import vllm_radix
from vllm_radix.bench.replay.names import split_options
from vllm_radix.config import SECTION, RadixConfig

CLASSES = {
    "stock": "vllm.v1.core.sched.scheduler.Scheduler",
    "radix": "vllm_radix.Scheduler",
}
"""Short names of scheduler classes."""


@dataclass(frozen=True)
class SchedulerChoice:
    """A scheduler class and the ``additional_config`` it gets."""

    label: str
    """As the user gave it."""
    cls: Any
    additional_config: dict[str, Any]


@dataclass(frozen=True)
class Limits:
    """What a server's flags of the same names limit."""

    block_size: int = 16
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 8192


def parse_scheduler(text: str) -> SchedulerChoice:
    """The scheduler named by ``stock``, ``radix`` or ``package.module.Class``.

    Options may follow as JSON: ``radix:{"eviction": "lfu"}``. For ``radix`` they are the plugin's
    own, for any other class the whole ``additional_config``; vLLM's own take none.

    Raises:
        ValueError: there is no such class or option, in one sentence.
    """
    name, options = split_options(text)
    module_name, _, class_name = CLASSES.get(name, name).rpartition(".")
    try:
        cls = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError, ValueError) as error:
        reason = f" ({error})" if module_name else ""
        raise ValueError(
            f"There is no scheduler {name!r}{reason}: give {', '.join(CLASSES)} or a class as "
            "package.module.Class."
        ) from None
    is_ours = cls is vllm_radix.Scheduler
    if not (is_ours or _is_scheduler(cls)):
        raise ValueError(
            f"{name} is no scheduler: give {', '.join(CLASSES)} or a class that implements vLLM's "
            "SchedulerInterface."
        )
    if options and cls.__module__.partition(".")[0] == "vllm":
        raise ValueError(f"{name} is vLLM's own and takes no options: leave out {options}.")
    if name == "radix":
        options = {SECTION: options}
    if is_ours:
        RadixConfig.from_additional_config(options)
    return SchedulerChoice(text, cls, options)


def _is_scheduler(cls: Any) -> bool:
    """Whether it is a class whose objects vLLM can run."""
    return (
        inspect.isclass(cls) and issubclass(cls, SchedulerInterface) and not inspect.isabstract(cls)
    )


def build_scheduler(
    choice: SchedulerChoice, limits: Limits, num_blocks: int, max_model_len: int
) -> Scheduler:
    """A scheduler with ``num_blocks`` KV blocks for requests to use.

    Raises:
        ValueError: vLLM does not accept the limits, in one sentence.
    """
    # vLLM keeps one block for itself.
    try:
        vllm_config = _vllm_config(choice, limits, num_blocks + 1, max_model_len)
    except ValidationError as error:
        raise ValueError(f"vLLM does not accept this: {error.errors()[0]['msg']}.") from None
    spec = FullAttentionSpec(
        block_size=limits.block_size, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    kv_cache_config = KVCacheConfig(
        num_blocks=num_blocks + 1,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
    )
    scheduler: Scheduler = choice.cls(
        vllm_config=vllm_config,
        kv_cache_config=kv_cache_config,
        structured_output_manager=StructuredOutputManager(vllm_config),
        block_size=limits.block_size,
        hash_block_size=limits.block_size,
        include_finished_set=False,
        log_stats=True,
    )
    return scheduler


def block_hasher(scheduler: Scheduler, block_size: int) -> Callable[[Any], Any] | None:
    """What hashes prompts for ``scheduler``, or None if it wants none."""
    if not getattr(scheduler, "needs_block_hashes", True):
        return None
    init_none_hash(sha256)
    return get_request_block_hasher(block_size, sha256)


class EvictionCounter:
    """Counts the blocks that a scheduler evicts from its prefix cache, from now on.

    vLLM's own counter samples, and would slow the scheduler down.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.num_blocks: int | None = 0
        """None if the scheduler's block pool is neither vLLM's nor ours."""
        pool: Any = scheduler.kv_cache_manager.block_pool
        tree = getattr(pool, "tree", None)
        if tree is not None:
            self._wrap(tree, "evict", len)
        elif hasattr(pool, "_maybe_evict_cached_block"):
            self._wrap(pool, "_maybe_evict_cached_block", int)
        else:
            self.num_blocks = None

    def _wrap(self, owner: Any, name: str, count: Callable[[Any], int]) -> None:
        original = getattr(owner, name)

        def counted(argument: Any) -> Any:
            result = original(argument)
            assert self.num_blocks is not None
            self.num_blocks += count(result)
            return result

        setattr(owner, name, counted)


def _vllm_config(
    choice: SchedulerChoice, limits: Limits, num_blocks: int, max_model_len: int
) -> VllmConfig:
    with tempfile.TemporaryDirectory(prefix="vllm-radix-replay-") as folder:
        _write_model(Path(folder), max_model_len)
        vllm_config = VllmConfig(
            model_config=ModelConfig(
                model=folder,
                skip_tokenizer_init=True,
                dtype="float32",
                max_model_len=max_model_len,
            ),
            scheduler_config=SchedulerConfig(
                max_num_seqs=limits.max_num_seqs,
                max_num_batched_tokens=limits.max_num_batched_tokens,
                max_model_len=max_model_len,
                is_encoder_decoder=False,
                enable_chunked_prefill=True,
                async_scheduling=False,
            ),
            cache_config=CacheConfig(block_size=limits.block_size, enable_prefix_caching=True),
            additional_config=choice.additional_config,
        )
    vllm_config.cache_config.num_gpu_blocks = num_blocks
    register_all_kvcache_specs(vllm_config)  # type: ignore[no-untyped-call]
    return vllm_config


def _write_model(folder: Path, max_model_len: int) -> None:
    """What vLLM needs to know of a model that is never loaded."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "vocab_size": 32000,
        "max_position_embeddings": max_model_len,
    }
    (folder / "config.json").write_text(json.dumps(config))
