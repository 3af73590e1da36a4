# SPDX-License-Identifier: Apache-2.0
"""The ways in which the model runs, as arguments of lm-eval's ``vllm`` backend."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ModelArgs = dict[str, Any]


@dataclass(frozen=True)
class Arm:
    """One way to run the model: its name, and the arguments that make it so."""

    name: str
    model_args: Mapping[str, Any] = field(default_factory=dict)


REFERENCE = Arm("no-cache", {"enable_prefix_caching": False})
STOCK = Arm("stock", {"enable_prefix_caching": True})
RADIX = Arm("radix", {"enable_prefix_caching": True, "scheduler_cls": "vllm_radix.Scheduler"})
ARMS = (REFERENCE, STOCK, RADIX)

# Without them vLLM counts no hits, and there would be no evidence.
_ALWAYS = {"disable_log_stats": False}
_RESERVED = ("pretrained", "disable_log_stats", "enable_prefix_caching", "scheduler_cls")

_STRESS_BLOCK_SIZE = 32
# Chunks of two blocks, and what 32 decoding requests leave of them.
_STRESS_CHUNK = 64
_STRESS_CONCURRENCY = 32
# The pool has room for so many requests of the greatest length.
_STRESS_REQUESTS = 2


def check_model_args(model_args: ModelArgs) -> None:
    """Return if the arms can be made of these arguments.

    Raises:
        ValueError: they set what the arms are about, or run more than one engine.
    """
    for name in _RESERVED:
        if name in model_args:
            raise ValueError(f"--model-args: leave {name} out, each arm sets it as it must be.")
    if int(model_args.get("data_parallel_size", 1)) > 1:
        raise ValueError(
            "--model-args: leave data_parallel_size out: lm-eval hides such engines in processes "
            "whose hits cannot be counted."
        )


def arm_args(arm: Arm, model: str, model_args: ModelArgs, stress: bool) -> ModelArgs:
    """What the backend is given for an arm.

    Raises:
        ValueError: see `stress_args`.
    """
    pressure = stress_args(model_args) if stress else {}
    return {"pretrained": model, **pressure, **model_args, **_ALWAYS, **arm.model_args}


def stress_args(model_args: ModelArgs) -> ModelArgs:
    """Arguments under which requests are cut in chunks, preempted, and their blocks evicted.

    Raises:
        ValueError: ``max_model_len`` is not among ``model_args``: the pool is sized by it.
    """
    if "max_model_len" not in model_args:
        raise ValueError(
            "--stress makes the KV pool as small as two of the longest requests: put a "
            "max_model_len into --model-args that leaves little above prompt and answer."
        )
    block_size = int(model_args.get("block_size", _STRESS_BLOCK_SIZE))
    blocks_per_request = -(-int(model_args["max_model_len"]) // block_size)
    return {
        "block_size": block_size,
        # vLLM keeps one block for itself.
        "num_gpu_blocks_override": _STRESS_REQUESTS * blocks_per_request + 1,
        "max_num_seqs": _STRESS_CONCURRENCY,
        "enable_chunked_prefill": True,
        "max_num_batched_tokens": _STRESS_CHUNK,
        # Counts every block that is handed out again.
        "kv_cache_metrics": True,
        "kv_cache_metrics_sample": 1.0,
    }
