# SPDX-License-Identifier: Apache-2.0
"""The servers that the demo compares, as command lines."""

from dataclasses import dataclass
from pathlib import Path

from benchmarks.models import smollm2
from vllm_radix.bench.server import Server, vllm_serve

MODEL_NAME = "SmolLM2-135M-Instruct"
LOGS = Path(__file__).parents[2] / ".cache" / "demo"


@dataclass(frozen=True)
class Arm:
    """One way to serve the model: its name in the table, and what it adds to ``vllm serve``."""

    name: str
    options: tuple[str, ...]


ARMS = (
    Arm("no prefix cache", ("--no-enable-prefix-caching",)),
    Arm("stock APC", ("--enable-prefix-caching",)),
    Arm("radix", ("--enable-prefix-caching", "--scheduler-cls", "vllm_radix.Scheduler")),
)

COMMON_OPTIONS = (
    *("--served-model-name", MODEL_NAME),
    # With bfloat16 a text can depend on how its prompt was cut into chunks, so a difference
    # between two servers would prove nothing.
    *("--dtype", "float32"),
    *("--max-model-len", "4096"),
    *("--block-size", "32"),
    "--enforce-eager",
    "--disable-uvicorn-access-log",
)
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    # GiB; all the dialogues together need a third of it. Read by the CPU build alone.
    "VLLM_CPU_KVCACHE_SPACE": "1",
}


def server(arm: Arm) -> Server:
    """The server of one arm, not started yet."""
    command = vllm_serve(smollm2.checkpoint(), *COMMON_OPTIONS, *arm.options)
    return Server(command, LOGS / f"{arm.name.replace(' ', '-')}.log", env=ENVIRONMENT)
