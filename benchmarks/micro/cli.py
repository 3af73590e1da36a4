# SPDX-License-Identifier: Apache-2.0
"""The command line: measure everything, print one table."""

import time
from collections.abc import Callable
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.micro import requests
from benchmarks.micro.decode import decode
from benchmarks.micro.figures import Figure, table
from benchmarks.micro.images import images
from benchmarks.micro.memory import memory
from benchmarks.micro.tree import evict_little, evict_much, match_deep
from vllm_radix import __version__
from vllm_radix.compat import vllm_version

app = typer.Typer(add_completion=False)

LONG, SHORT = 131_072, 1_024


@app.command()
def main(
    quick: Annotated[
        bool, typer.Option(help="A tenth of the repetitions: to see that it runs, not to quote.")
    ] = False,
    only: Annotated[
        str, typer.Option(help="Measure only sections whose title contains this text.")
    ] = "",
) -> None:
    """Measure what the scheduler costs on the tree and on stock vLLM's prefix cache.

    No model runs. Both sides take turns in one process; times are medians of CPU time.
    """
    console = Console()
    if not console.is_terminal:
        console.width = 130
    start = time.monotonic()
    results: list[tuple[str, list[Figure]]] = []
    for title, measure in _sections(quick).items():
        if only in title:
            with console.status(f"measuring: {title}"):
                results.append((title, measure()))
    if not results:
        console.print(f"No section's title contains {only!r}: {'; '.join(_sections(quick))}.")
        raise typer.Exit(2)
    console.print(table(results))
    console.print(
        f"vllm-radix {__version__}, vLLM {vllm_version()}, {time.monotonic() - start:.0f} s",
        highlight=False,
    )


def _sections(quick: bool) -> dict[str, Callable[[], list[Figure]]]:
    def rounds(number: int) -> int:
        return max(3, number // 10) if quick else number

    suffix = f"+ {requests.SUFFIX_TOKENS} of its own"
    return {
        f"request of {LONG:,} cached tokens {suffix}": lambda: requests.cached_prefix(
            LONG, rounds(60), requests.long_targets()
        ),
        f"request of {SHORT:,} cached tokens {suffix}": lambda: requests.cached_prefix(
            SHORT, rounds(1500), requests.short_targets()
        ),
        f"prefill of {LONG:,} uncached tokens": lambda: requests.uncached_prefill(LONG, rounds(20)),
        "50 cached images of 576 positions": lambda: images(50, 576, rounds(200)),
        "decode with 256 running requests": lambda: decode(256, rounds(400)),
        "tree alone": lambda: [
            evict_little(rounds(500)),
            *evict_much(rounds(6)),
            match_deep(256, LONG, rounds(500)),
        ],
        "memory by cached block": lambda: memory(16_384, (8_192, 512)),
    }
