# SPDX-License-Identifier: Apache-2.0
"""What patience buys and costs: hit rate, makespan and latency against first come, first served.

    python -m benchmarks.patience [PNG]

Replays ``batch`` and ``agents`` (see ``vllm-radix replay``) on stock and on the affinity queue with
several values of the option ``patience``, prints means over three seeds as ratios to stock, and
plots the trade-off. Takes a few minutes; no model runs.
"""

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

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

logging.getLogger("vllm").setLevel(logging.ERROR)

WORKLOADS = (("batch", 60_000), ("agents", 100_000), ("agents", 200_000))
PATIENCE = (1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0)
SEEDS = (0, 1, 2)
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


def table(rows: Sequence[tuple[str, int, float, Run, Run]]) -> Table:
    """A row for each workload and patience, with ratios to stock."""
    result = Table(title="Ratios to stock; hit: share of prompt tokens found in the cache")
    for column in ("workload", "capacity", "patience", "hit (stock)", "makespan"):
        result.add_column(column, justify="right")
    for percentile in ("p50", "p90", "p99"):
        result.add_column(f"TTFT {percentile}", justify="right")
    for workload, capacity, patience, ours, stock in rows:
        ratios = [
            getattr(ours, name) / getattr(stock, name)
            for name in ("makespan", "ttft_p50", "ttft_p90", "ttft_p99")
        ]
        result.add_row(
            workload,
            f"{capacity:,}",
            f"{patience:g}",
            f"{ours.hit_rate:.3f} ({stock.hit_rate:.3f})",
            *(f"{ratio:.2f}" for ratio in ratios),
        )
    return result


def plot(rows: Sequence[tuple[str, int, float, Run, Run]], file: Path) -> None:
    """Hit rate against the tail of the time to first token, a line for each workload."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for workload, capacity in WORKLOADS:
        points = [row for row in rows if row[:2] == (workload, capacity)]
        tails = [ours.ttft_p99 / stock.ttft_p99 for *_, ours, stock in points]
        hits = [ours.hit_rate for *_, ours, _ in points]
        axes.plot(tails, hits, marker="o", label=f"{workload}, {capacity:,} tokens")
        for (_, _, patience, _, _), tail, hit in zip(points, tails, hits, strict=True):
            axes.annotate(f"{patience:g}", (tail, hit), xytext=(4, -11), textcoords="offset points")
    axes.axvline(1.0, color="grey", linewidth=0.8)
    axes.set_xlabel("p99 of the time to first token, ratio to stock")
    axes.set_ylabel("hit rate")
    axes.set_title("The option patience: what it buys, and what it costs")
    axes.legend()
    figure.savefig(file, dpi=120)


def main() -> None:
    """Print the table; with an argument, plot to that file as well."""
    stock = {workload: replay("stock", *workload) for workload in track(WORKLOADS, "stock")}
    rows = [
        (
            *workload,
            patience,
            replay(f'radix:{{"patience": {patience}}}', *workload),
            stock[workload],
        )
        for workload, patience in track(
            [(workload, patience) for workload in WORKLOADS for patience in PATIENCE], "radix"
        )
    ]
    console = Console()
    if not console.is_terminal:
        console.width = 110
    console.print(table(rows))
    if len(sys.argv) > 1:
        plot(rows, Path(sys.argv[1]))


if __name__ == "__main__":
    main()
