# SPDX-License-Identifier: Apache-2.0
"""The plots of a report, as SVG."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, PercentFormatter

from vllm_radix.bench.ab.figures import ttft_by_turn
from vllm_radix.bench.ab.results import Request, Results, Run, Sample

# Told apart with any kind of colour vision, and in grey by their order of brightness.
COLOURS = ("#8a8f98", "#d9822b", "#1764ab", "#2e8b57", "#9b4f96", "#5d4037")
_WINDOWS = 12
"""A hit rate over time is that of a twelfth of the run, up to each point."""
_STRETCHES = 30
"""Of a run whose KV usage is drawn: it changes with every request, too fast to see."""
_STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "both",
    "grid.alpha": 0.25,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "legend.frameon": False,
    "legend.fontsize": 9,
    "svg.hashsalt": "vllm-radix",
}


@dataclass(frozen=True)
class Plot:
    """A picture with its words."""

    title: str
    about: str
    """What its lines are; also for those who don't see it."""
    svg: bytes


def plots(results: Results) -> list[Plot]:
    """All plots that there is something to draw in."""
    found = []
    runs = [run for run in results.runs if run.is_complete and run.requests]
    turns = max((request.turn for run in runs for request in run.requests), default=0)
    if turns:
        found.append(
            _plot(
                results,
                "Time to first token by turn",
                "Median (solid) and 90th percentile (dashed) over all rounds.",
                _draw_turns,
            )
        )
    if any(run.samples and run.samples[-1].queries for run in runs):
        found.append(
            _plot(
                results,
                "Hit rate over time",
                "Prompt tokens found in the prefix cache, over a sliding window; a line a round.",
                _draw_hit_rate,
            )
        )
    if turns and any(request.cached_tokens is not None for run in runs for request in run.requests):
        found.append(
            _plot(
                results,
                "Prompt tokens read from the cache, by turn",
                "Share of all prompt tokens of a turn, over all rounds.",
                _draw_cached,
            )
        )
    if runs:
        found += [
            _plot(
                results,
                "Time to first token, all requests",
                "Share of the requests that had their first token by then; all rounds together.",
                lambda axes, arms: _draw_distribution(axes, arms, lambda request: request.ttft),
            ),
            _plot(
                results,
                "End-to-end latency, all requests",
                "Share of the requests that were answered by then; all rounds together.",
                lambda axes, arms: _draw_distribution(axes, arms, lambda request: request.e2e),
            ),
        ]
    if any(run.samples for run in runs):
        found.append(
            _plot(
                results,
                "KV usage over time",
                "Share of the KV blocks that running requests hold, smoothed; a line a round.",
                _draw_usage,
            )
        )
    return found


@dataclass(frozen=True)
class _Arm:
    name: str
    colour: str
    runs: list[Run]

    @property
    def requests(self) -> list[Request]:
        return [request for run in self.runs for request in run.requests]


def colours(results: Results) -> dict[str, str]:
    """The colour of each arm."""
    return {arm.name: COLOURS[number % len(COLOURS)] for number, arm in enumerate(results.arms)}


def _plot(
    results: Results, title: str, about: str, draw: Callable[[Axes, list[_Arm]], None]
) -> Plot:
    arms = [
        _Arm(name, colour, runs)
        for name, colour in colours(results).items()
        if (runs := results.complete(name))
    ]
    with rc_context(_STYLE):
        figure = Figure(figsize=(5.2, 3.4), layout="constrained")
        axes = figure.subplots()
        draw(axes, arms)
        for arm in arms:
            axes.plot([], [], color=arm.colour, label=arm.name, linewidth=2)
        figure.legend(loc="outside upper left", ncols=min(len(arms), 4), handlelength=1.2)
        file = io.BytesIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return Plot(title, about, file.getvalue())


def _draw_turns(axes: Axes, arms: list[_Arm]) -> None:
    for arm in arms:
        for percentile, style in ((50, "o-"), (90, "--")):
            values = ttft_by_turn(arm.requests, percentile)
            turns = range(1, len(values) + 1)
            axes.plot(turns, 1000 * np.array(values), style, color=arm.colour, markersize=4)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(_milliseconds())
    _label_turns(axes)


def _draw_cached(axes: Axes, arms: list[_Arm]) -> None:
    for arm in arms:
        totals: dict[int, np.ndarray] = {}
        for request in arm.requests:
            counts = np.array([request.cached_tokens or 0, request.prompt_tokens])
            totals[request.turn] = totals.get(request.turn, 0) + counts
        shares = [totals[turn][0] / totals[turn][1] for turn in sorted(totals)]
        axes.plot(range(1, len(shares) + 1), shares, "o-", color=arm.colour, markersize=4)
    _label_share(axes)
    _label_turns(axes)


def _draw_hit_rate(axes: Axes, arms: list[_Arm]) -> None:
    for arm in arms:
        for run in arm.runs:
            times, shares = hit_rate_over_time(run.samples)
            axes.plot(times, shares, color=arm.colour, alpha=_alpha(arm), linewidth=1.5)
    _label_share(axes)
    axes.set_xlabel("seconds")


def _draw_usage(axes: Axes, arms: list[_Arm]) -> None:
    for arm in arms:
        for run in arm.runs:
            times, usage = usage_over_time(run.samples)
            axes.plot(times, usage, color=arm.colour, alpha=_alpha(arm), linewidth=1.2)
    _label_share(axes)
    axes.set_xlabel("seconds")


def _draw_distribution(axes: Axes, arms: list[_Arm], value: Callable[[Request], float]) -> None:
    for arm in arms:
        values = np.sort([1000 * value(request) for request in arm.requests])
        shares = np.arange(1, len(values) + 1) / len(values)
        axes.step(values, shares, where="post", color=arm.colour, linewidth=1.8)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(_milliseconds())
    axes.xaxis.set_minor_formatter("")
    _label_share(axes)


def hit_rate_over_time(samples: Sequence[Sample]) -> tuple[list[float], list[float]]:
    """Times, and the hit rate of the window that ends at each; windows without lookups are left
    out."""
    if not samples:
        return [], []
    width = samples[-1].time / _WINDOWS
    times, shares = [], []
    start = 0
    for sample in samples:
        while samples[start].time < sample.time - width:
            start += 1
        # The window begins with the last sample before it, or the first of all.
        before = samples[max(start - 1, 0)]
        queries = sample.queries - before.queries
        if queries:
            times.append(sample.time)
            shares.append((sample.hits - before.hits) / queries)
    return times, shares


def usage_over_time(samples: Sequence[Sample]) -> tuple[list[float], list[float]]:
    """Times, and the mean KV usage of the stretch of the run around each."""
    times = np.array([sample.time for sample in samples])
    usage = np.array([sample.kv_usage for sample in samples])
    if not len(samples) or not times[-1]:
        return list(times), list(usage)
    stretches = np.minimum((times / times[-1] * _STRETCHES).astype(int), _STRETCHES - 1)
    numbers = np.unique(stretches)
    return (
        [float(times[stretches == number].mean()) for number in numbers],
        [float(usage[stretches == number].mean()) for number in numbers],
    )


def _label_turns(axes: Axes) -> None:
    axes.set_xlabel("turn")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _label_share(axes: Axes) -> None:
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))


def _milliseconds() -> FuncFormatter:
    def show(value: float, _: Any) -> str:
        return f"{value / 1000:g} s" if value >= 1000 else f"{value:g} ms"

    return FuncFormatter(show)


def _alpha(arm: _Arm) -> float:
    return 0.9 if len(arm.runs) == 1 else 0.55
