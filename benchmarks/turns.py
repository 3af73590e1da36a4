# SPDX-License-Identifier: Apache-2.0
"""The demo's dialogues turn by turn: prompt tokens computed and time to first token.

    python -m benchmarks.turns

Stock APC and the radix tree serve them in rounds, a different one first in each, at a block size
that leaves much of a turn's end in a block which is not full. Each round starts its servers anew,
so each begins with an empty cache.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import Annotated

import openai
import typer
from rich.table import Table

from benchmarks.demo.demo import Result, console, find_differences, measure, say
from benchmarks.demo.dialogues import AGENTS
from benchmarks.demo.servers import ARMS, MODEL_NAME
from vllm_radix.bench.server import ServerError

STOCK, RADIX = ARMS[1:]


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Servers started on either side.")] = 2,
    block_size: Annotated[int, typer.Option(help="Tokens in a block.")] = 128,
) -> None:
    """Print what each turn computes, and how long its first token takes, on both sides."""
    # vLLM takes the last of two values for one option.
    arms = [
        replace(arm, options=(*arm.options, "--block-size", str(block_size)))
        for arm in (STOCK, RADIX)
    ]
    results: list[Result] = []
    try:
        for number in range(rounds):
            results += [measure(arm) for arm in arms[:: -1 if number % 2 else 1]]
    except (ServerError, openai.OpenAIError, OSError) as error:
        say(str(error))
        sys.exit(1)
    console.print(table(results, block_size))
    differences = find_differences(results)
    for line in differences.values():
        say(line)
    sys.exit(1 if differences else 0)


def table(results: Sequence[Result], block_size: int) -> Table:
    """A row for each turn: tokens of a prompt on average, times as medians, and their ratios."""
    stock, ours = (
        [result for result in results if result.arm.name == arm.name] for arm in (STOCK, RADIX)
    )
    out = Table(title=f"{MODEL_NAME}, blocks of {block_size}: {len(AGENTS)} prompts in each turn")
    for column in ("turn", "prompt", "computed: stock", "ours", "ratio"):
        out.add_column(column, justify="right")
    for column in ("first token: stock", "ours", "ratio"):
        out.add_column(column, justify="right")
    for turn in range(len(stock[0].turns)):
        computed = [_mean(num_computed(result)[turn] for result in side) for side in (stock, ours)]
        ttft = [
            median(answer.ttft for result in side for answer in result.turns[turn])
            for side in (stock, ours)
        ]
        looked_up = stock[0].counts[turn + 1].queries - stock[0].counts[turn].queries
        out.add_row(
            str(turn + 1),
            f"{looked_up / len(stock[0].turns[turn]):.0f}",
            *(f"{tokens:.0f}" for tokens in computed),
            f"{computed[1] / computed[0]:.2f}",
            *(f"{1000 * seconds:.0f} ms" for seconds in ttft),
            f"{ttft[1] / ttft[0]:.2f}",
        )
    return out


def num_computed(result: Result) -> list[float]:
    """Prompt tokens that a request of each turn computed, on average."""
    spent = [after - before for before, after in pairwise(result.counts)]
    return [
        (cache.queries - cache.hits) / len(answers)
        for cache, answers in zip(spent, result.turns, strict=True)
    ]


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


if __name__ == "__main__":
    typer.run(main)
