# SPDX-License-Identifier: Apache-2.0
"""What a replay found, as a table, a JSON file and a plot."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from statistics import mean
from typing import Any

from pydantic import BaseModel
from rich.table import Table

from vllm_radix.bench.replay.results import Bounds, Run, mean_run

_BOUNDS = (
    " clairvoyant: Belady's eviction, which knows every later request, one after the other in the "
    "order in which they came in the run of the scheduler named (another order can beat it); "
    "unlimited cache: nothing is ever evicted."
)


class Report(BaseModel):
    """Everything that was replayed, and how."""

    workload: str
    num_requests: int
    num_prompt_tokens: int
    """Of the first seed."""
    settings: dict[str, Any]
    runs: list[Run] = []
    bounds: list[Bounds] = []

    def means(self) -> list[Run]:
        """Complete runs by capacity, then scheduler, as means over the seeds; then the others."""
        groups: dict[tuple[int, str], list[Run]] = {}
        for run in self.runs:
            if run.is_complete:
                groups.setdefault((run.capacity, run.scheduler), []).append(run)
        means = [mean_run(runs) for runs in groups.values()]
        stopped = [run for run in self.runs if not run.is_complete]
        return sorted(means + stopped, key=lambda run: run.capacity)

    def mean_bounds(self, capacity: int) -> Bounds | None:
        """The means over the seeds for a capacity."""
        of_capacity = [bounds for bounds in self.bounds if bounds.capacity == capacity]
        if not of_capacity:
            return None
        return of_capacity[0].model_copy(
            update={
                name: mean(getattr(bounds, name) for bounds in of_capacity)
                for name in ("unlimited", "clairvoyant")
            }
        )

    def write_json(self, path: Path) -> None:
        """Write all of it; an earlier file is replaced at once or not at all."""
        part = path.with_name(path.name + ".part")
        part.write_text(self.model_dump_json(indent=2) + "\n")
        part.replace(path)

    def table(self) -> Table:
        """A row for each scheduler at each capacity, and for each bound."""
        seeds = {run.seed for run in self.runs}
        title = f"{self.workload}: {self.num_requests} requests"
        if len(seeds) > 1:
            title += f", means over {len(seeds)} seeds"
        table = Table(title=title, title_justify="left", caption_justify="left")
        caption = (
            "capacity: tokens of KV cache; hit: prompt tokens found in the cache at a request's "
            "first admission; tok/s: prompt and answer tokens; evicted: blocks; scheduler: real "
            "time per step; all other times are virtual."
        )
        table.add_column("capacity", justify="right")
        table.add_column("scheduler", overflow="fold")
        for heading in (
            "hit",
            "makespan\ns",
            "TTFT p50\ns",
            "p90\ns",
            "p99\ns",
            "max\ns",
            "tok/s",
            "scheduler\np50 ms",
            "p99\nms",
            "evicted",
            "pre-\nempted",
        ):
            table.add_column(heading, justify="right")
        for capacity, runs in groupby(self.means(), key=lambda run: run.capacity):
            for run in runs:
                table.add_row(*_cells(run))
            bounds = self.mean_bounds(capacity)
            if bounds is not None:
                order = f"clairvoyant, order of {bounds.order_of}"
                table.add_row(f"{capacity:,}", order, f"{bounds.clairvoyant:.3f}", style="dim")
                table.add_row("", "unlimited cache", f"{bounds.unlimited:.3f}", style="dim")
            table.add_section()
        table.caption = caption + (_BOUNDS if self.bounds else "")
        return table

    def write_plot(self, path: Path) -> None:
        """Hit rate against capacity, for each scheduler and each bound."""
        from matplotlib.figure import Figure
        from matplotlib.ticker import FuncFormatter

        figure = Figure(figsize=(7, 4.5), layout="constrained")
        axes = figure.subplots()
        complete = [run for run in self.means() if run.is_complete]
        for scheduler in dict.fromkeys(run.scheduler for run in complete):
            of_scheduler = [run for run in complete if run.scheduler == scheduler]
            axes.plot(
                [run.capacity for run in of_scheduler],
                [run.hit_rate for run in of_scheduler],
                marker="o",
                label=scheduler,
            )
        bounds = [self.mean_bounds(capacity) for capacity in _capacities(complete)]
        known = [one for one in bounds if one is not None]
        for name, label, style in (
            ("clairvoyant", "clairvoyant eviction", "--"),
            ("unlimited", "unlimited cache", ":"),
        ):
            axes.plot(
                [one.capacity for one in known],
                [getattr(one, name) for one in known],
                style,
                marker=".",
                color="grey",
                label=label,
            )
        axes.set_title(self.workload)
        axes.set_xlabel("capacity (tokens of KV cache)")
        axes.set_ylabel("hit rate (of prompt tokens)")
        axes.set_ylim(0, 1)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda tokens, _: f"{tokens / 1000:g}k"))
        axes.grid(alpha=0.3)
        axes.legend()
        figure.savefig(path, dpi=150)


def plot_suffixes() -> frozenset[str]:
    """What the name of a plot's file may end with, without the dot."""
    from matplotlib.figure import Figure

    # The last one calls LaTeX, which is hardly ever there.
    return frozenset(Figure().canvas.get_supported_filetypes()) - {"pgf"}


def _capacities(runs: Sequence[Run]) -> list[int]:
    return sorted({run.capacity for run in runs})


def _cells(run: Run) -> list[str]:
    name = run.scheduler
    if not run.is_complete:
        name += f" (stopped after {run.num_finished} of {run.num_requests})"
    return [
        f"{run.capacity:,}",
        name,
        f"{run.hit_rate:.3f}",
        f"{run.makespan:,.1f}",
        f"{run.ttft_p50:.2f}",
        f"{run.ttft_p90:.2f}",
        f"{run.ttft_p99:.2f}",
        f"{run.ttft_max:.2f}",
        f"{run.throughput:,.0f}",
        f"{run.scheduler_ms_p50:.2f}",
        f"{run.scheduler_ms_p99:.2f}",
        "-" if run.evicted_blocks is None else f"{run.evicted_blocks:,.0f}",
        f"{run.preemptions:,.0f}",
    ]
