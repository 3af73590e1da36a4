# SPDX-License-Identifier: Apache-2.0
"""What is said of each turn follows from what the servers counted and took."""

import io

from rich.console import Console

from benchmarks import turns
from benchmarks.demo.demo import Answer, Result
from benchmarks.demo.servers import Arm
from vllm_radix.bench.server import PrefixCacheCounts


def result(arm: Arm, hits: list[int], *ttft: float) -> Result:
    """Two turns of two agents, who send 100 tokens each; ``hits`` and times are by turn."""
    said = [[Answer(agent, "text", 7, seconds) for agent in "ab"] for seconds in ttft]
    counts = [PrefixCacheCounts(40, 10)]
    for found in hits:
        counts.append(PrefixCacheCounts(counts[-1].queries + 200, counts[-1].hits + found))
    return Result(arm, said, counts)


def test_computed_tokens_are_those_that_were_not_found() -> None:
    assert turns.num_computed(result(turns.STOCK, [0, 120], 1.0, 1.0)) == [100, 40]


def test_table() -> None:
    results = [
        result(turns.STOCK, [0, 100], 0.2, 0.1),
        result(turns.RADIX, [20, 180], 0.2, 0.05),
        result(turns.RADIX, [20, 180], 0.2, 0.05),
        result(turns.STOCK, [0, 140], 0.2, 0.3),
    ]
    output = io.StringIO()
    Console(file=output, width=120).print(turns.table(results, 128))
    rows = [
        [cell.strip() for cell in line.strip("│").split("│")]
        for line in output.getvalue().splitlines()
        if line.startswith("│")
    ]
    assert rows == [
        ["1", "100", "100", "90", "0.90", "200 ms", "200 ms", "1.00"],
        ["2", "100", "40", "10", "0.25", "200 ms", "50 ms", "0.25"],
    ]
