# SPDX-License-Identifier: Apache-2.0
"""What the copy of a block costs a step, and how many tokens of prefill that is.

    python -m benchmarks.copies

Three requests take turns on one engine that serves SmolLM2, each with tokens of its own after a
cached prefix: one whose match ends inside a block, which is copied; one whose match ends with a
block; and one of those with more tokens to compute. The first two differ by the copy, the last two
by the prefill. What a copy has to save at least is the option ``min_partial_tokens``.

Measured is the CPU time of one thread: that of several, and time on the clock, depend on what else
the machine does.
"""

import itertools
import os
import time
from statistics import median, quantiles
from typing import Annotated
from unittest.mock import patch

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

console = Console()
# To be set before vLLM and torch are imported.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}
BLOCK_SIZES = (16, 32, 128)
PREFIX_BLOCKS = 2
OWN_TOKENS = 16
MORE_TOKENS = 32
"""Tokens that the third request computes beyond those of the second."""


class Steps:
    """One engine; a request of one output token takes one step.

    Args:
        block_size: in tokens.
    """

    def __init__(self, block_size: int) -> None:
        from vllm import LLM
        from vllm.v1.attention.backend import MultipleOf
        from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

        from benchmarks.models.smollm2 import checkpoint

        # vLLM's CPU attention admits multiples of 32 only, for speed; it can do the others.
        any_size = staticmethod(lambda kv_cache_spec=None: [MultipleOf(16)])
        with patch.object(CPUAttentionBackend, "get_supported_kernel_block_sizes", any_size):
            self._llm = LLM(
                model=str(checkpoint()),
                dtype="float32",
                enforce_eager=True,
                max_model_len=1024,
                max_num_seqs=4,
                kv_cache_memory_bytes=256 << 20,
                block_size=block_size,
                scheduler_cls="vllm_radix.Scheduler",
            )
        self._words = itertools.count(1000)
        whole = PREFIX_BLOCKS * block_size
        self._prefix = [next(self._words) for _ in range(whole + block_size // 2)]
        self.seconds(self._prefix, 0)
        self.cases = {
            "copy": (self._prefix, OWN_TOKENS),
            "no copy": (self._prefix[:whole], OWN_TOKENS),
            "more tokens": (self._prefix[:whole], OWN_TOKENS + MORE_TOKENS),
        }

    def seconds(self, prefix: list[int], num_own: int) -> float:
        """CPU time of a request that goes on after ``prefix`` with tokens that nobody had there."""
        from vllm import SamplingParams, TokensPrompt

        prompt = prefix + [next(self._words) for _ in range(num_own)]
        start = time.process_time()
        (output,) = self._llm.generate(
            TokensPrompt(prompt_token_ids=prompt),
            SamplingParams(max_tokens=1, temperature=0.0, detokenize=False),
            use_tqdm=False,
        )
        taken = time.process_time() - start
        expected = len(prefix) if num_own else 0
        assert output.num_cached_tokens == expected, "the match is not what is to be measured"
        return taken

    def measure(self, rounds: int) -> dict[str, list[float]]:
        """Seconds by case, a different case first in each round."""
        found: dict[str, list[float]] = {case: [] for case in self.cases}
        order = list(self.cases)
        for number in track(range(-3, rounds), "rounds", console=console, transient=True):
            for case in order:
                taken = self.seconds(*self.cases[case])
                if number >= 0:  # the first ones warm up
                    found[case].append(taken)
            order.append(order.pop(0))
        return found


def differences(ones: list[float], others: list[float]) -> list[float]:
    """Differences within each round, so that what slows a whole round down cancels out."""
    return [one - other for one, other in zip(ones, others, strict=True)]


def row(block_size: int, found: dict[str, list[float]]) -> list[str]:
    """A row of the table."""
    copy = differences(found["copy"], found["no copy"])
    prefill = differences(found["more tokens"], found["no copy"])
    low, _, high = quantiles(copy, n=4)
    token = median(prefill) / MORE_TOKENS
    return [
        str(block_size),
        f"{1000 * median(found['no copy']):.1f} ms",
        f"{1000 * median(copy):.2f} ms ({1000 * low:.2f} to {1000 * high:.2f})",
        f"{1000 * token:.2f} ms",
        f"{median(copy) / token:.1f}",
    ]


def main(
    rounds: Annotated[int, typer.Option(min=4, help="Requests of each kind.")] = 25,
) -> None:
    """Print the cost of a copy at each block size, next to that of a token of prefill."""
    os.environ.update(ENVIRONMENT)
    table = Table(title=f"SmolLM2-135M-Instruct, a step of {OWN_TOKENS} tokens: CPU time, medians")
    for column in ("block size", "step", "copy (quartiles)", "prefill, a token", "break-even"):
        table.add_column(column, justify="right")
    for block_size in BLOCK_SIZES:
        table.add_row(*row(block_size, Steps(block_size).measure(rounds)))
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
