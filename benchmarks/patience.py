# SPDX-License-Identifier: Apache-2.0
"""What waiting buys and costs: hit rate, makespan and latency against first come, first served.

    python -m benchmarks.patience [PNG]

Replays ``batch`` and ``agents`` (see ``vllm-radix replay``) on stock and on the affinity queue,
with several values of the option ``patience`` and of how long a request waits before it is late,
prints means over three seeds as ratios to stock, and plots both trade-offs. Takes ten minutes; no
model runs.
"""

import logging
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from unittest.mock import patch

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import matplotlib
from rich.console import Console
from rich.progress import track
from rich.table import Table

from vllm_radix.bench.replay.cost import CostModel
from vllm_radix.bench.replay.engine import Replay
from vllm_radix.bench.replay.results import Run, mean_run, summarise
from vllm_radix.bench.replay.schedulers import Limits, build_scheduler, parse_scheduler
from vllm_radix.bench.replay.workloads import make_generator
from vllm_radix.config import RadixConfig
from vllm_radix.scheduling import lane

logging.getLogger("vllm").setLevel(logging.ERROR)

WORKLOADS = (("batch", 60_000), ("agents", 100_000), ("agents", 200_000))
PATIENCE = (1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0)
LATE = (1.0, 1.5, 2.0, 3.0, 4.0, math.inf)
SEEDS = (0, 1, 2)
_TITLES = {
    "patience": "the option patience",
    "late": "times the usual wait until a request is late",
}
COST = CostModel(6e-3, 40e-6, 20e-6, 0.4e-9)


def replay(scheduler: str, workload: str, capacity: int) -> Run:
    """The mean of a workload's runs over all seeds."""
    runs = []
    for seed in SEEDS:
        requests = make_generator(workload, {}).generate(seed)
        limits = Limits(requests.block_size)
        run = Replay(
            requests,
            build_scheduler(
                parse_scheduler(scheduler),
                limits,
                capacity // limits.block_size,
                requests.max_tokens + 1,
            ),
            COST,
        )
        run.run()
        summary = summarise(run, scheduler, capacity, seed)
        assert summary is not None
        runs.append(summary)
    return mean_run(runs)


@dataclass
class Point:
    """What the queue makes of a workload with one pair of values.

    Attributes:
        workload: its name, and the capacity in tokens.
        patience: the option.
        late: how many times as long as is usual a request waits before it is late.
        run: means over the seeds.
        stock: the same of stock.
    """

    workload: tuple[str, int]
    patience: float
    late: float
    run: Run
    stock: Run


def measure(patience: float, late: float, stock: dict[tuple[str, int], Run]) -> list[Point]:
    """A point for each workload."""
    scheduler = f'radix:{{"patience": {patience}}}'
    with patch.object(lane, "LATE", late):
        return [
            Point(workload, patience, late, replay(scheduler, *workload), stock[workload])
            for workload in WORKLOADS
        ]


def table(points: Sequence[Point]) -> Table:
    """A row for each point, with ratios to stock."""
    result = Table(title="Ratios to stock; hit: share of prompt tokens found in the cache")
    for column in ("workload", "capacity", "patience", "late", "hit (stock)", "makespan"):
        result.add_column(column, justify="right")
    for percentile in ("p50", "p90", "p99"):
        result.add_column(f"TTFT {percentile}", justify="right")
    for point in points:
        ratios = [
            getattr(point.run, name) / getattr(point.stock, name)
            for name in ("makespan", "ttft_p50", "ttft_p90", "ttft_p99")
        ]
        name, capacity = point.workload
        result.add_row(
            name,
            f"{capacity:,}",
            f"{point.patience:g}",
            f"{point.late:g}",
            f"{point.run.hit_rate:.3f} ({point.stock.hit_rate:.3f})",
            *(f"{ratio:.2f}" for ratio in ratios),
        )
    return result


def plot(sweeps: dict[str, Sequence[Point]], file: Path) -> None:
    """Hit rate against the tail of the time to first token, a line for each workload.

    Args:
        sweeps: a panel for each, ``patience`` and ``late``: what varies.
        file: where the picture goes.
    """
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(
        1, len(sweeps), figsize=(5 * len(sweeps), 4.2), sharey=True, layout="constrained"
    )
    for axes, (varied, points) in zip(panels, sweeps.items(), strict=True):
        for workload in WORKLOADS:
            line = [point for point in points if point.workload == workload]
            tails = [point.run.ttft_p99 / point.stock.ttft_p99 for point in line]
            hits = [point.run.hit_rate for point in line]
            name, capacity = workload
            axes.plot(tails, hits, marker="o", label=f"{name}, {capacity:,} tokens")
            for point, tail, hit in zip(line, tails, hits, strict=True):
                label = f"{getattr(point, varied):g}".replace("inf", "never")
                axes.annotate(label, (tail, hit), xytext=(4, -11), textcoords="offset points")
        axes.axvline(1.0, color="grey", linewidth=0.8)
        axes.set_xlabel("p99 of the time to first token, ratio to stock")
        axes.set_title(_TITLES[varied])
    panels[0].set_ylabel("hit rate")
    panels[1].legend(loc="lower right")
    figure.savefig(file, dpi=120)


def main() -> None:
    """Print the table; with an argument, plot to that file as well."""
    stock = {workload: replay("stock", *workload) for workload in track(WORKLOADS, "stock")}
    usual = RadixConfig().patience
    values = {
        "patience": [(patience, lane.LATE) for patience in PATIENCE],
        "late": [(usual, late) for late in LATE],
    }
    # The usual pair is in both.
    pairs = list(dict.fromkeys(chain.from_iterable(values.values())))
    measured = {pair: measure(*pair, stock) for pair in track(pairs, "radix")}
    sweeps = {
        varied: [point for pair in line for point in measured[pair]]
        for varied, line in values.items()
    }
    console = Console()
    if not console.is_terminal:
        console.width = 110
    for points in sweeps.values():
        console.print(table(sorted(points, key=lambda point: WORKLOADS.index(point.workload))))
    if len(sys.argv) > 1:
        plot(sweeps, Path(sys.argv[1]))


if __name__ == "__main__":
    main()
