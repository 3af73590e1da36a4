# SPDX-License-Identifier: Apache-2.0
"""A run in figures, and what the figures are called."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Literal

import numpy as np

from vllm_radix.bench.ab.results import Figures, Request, Run, Sample


@dataclass(frozen=True)
class Metric:
    """A figure: what it is called, how it is written, and when it is good."""

    key: str
    """The field of :class:`~vllm_radix.bench.ab.results.Figures`."""
    label: str
    unit: Literal["s", "tok/s", "share", ""]
    kind: Literal["ratio", "difference"]
    """How two arms are compared. Shares and counts may be zero, so they are subtracted."""
    better: Literal["low", "high"] | None
    """None where neither is good in itself."""

    def show(self, value: float | None) -> str:
        """A value with its unit."""
        if value is None:
            return "-"
        if self.unit == "s":
            if value >= 1:
                return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f} s"
            return f"{1000 * value:.{_digits(value)}f} ms"
        if self.unit == "share":
            return f"{value:.1%}"
        number = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
        return f"{number} {self.unit}".rstrip()

    def show_range(self, low: float, high: float) -> str:
        """Two values with their unit once."""
        return _range(self.show(low), self.show(high))

    def show_change_range(self, low: float, high: float) -> str:
        """Two ratios or differences."""
        return _range(self.show_change(low), self.show_change(high))

    def show_change(self, value: float) -> str:
        """A ratio or a difference."""
        if self.kind == "ratio":
            # What one or two rounds may say.
            return "<0.01x" if value < 0.005 else ">100x" if value > 100 else f"{value:.2f}x"
        return f"{100 * value:+.1f} points" if self.unit == "share" else f"{value:+,.0f}"


METRICS = (
    Metric("hit_rate", "hit rate", "share", "difference", "high"),
    Metric("images_encoded", "images encoded", "", "difference", "low"),
    Metric("ttft_p50", "TTFT p50", "s", "ratio", "low"),
    Metric("ttft_p90", "TTFT p90", "s", "ratio", "low"),
    Metric("ttft_p99", "TTFT p99", "s", "ratio", "low"),
    Metric("tpot_p50", "TPOT p50", "s", "ratio", "low"),
    Metric("tpot_p90", "TPOT p90", "s", "ratio", "low"),
    Metric("tpot_p99", "TPOT p99", "s", "ratio", "low"),
    Metric("e2e_p50", "end to end p50", "s", "ratio", "low"),
    Metric("e2e_p90", "end to end p90", "s", "ratio", "low"),
    Metric("e2e_p99", "end to end p99", "s", "ratio", "low"),
    Metric("output_tps", "output", "tok/s", "ratio", "high"),
    Metric("preemptions", "preemptions", "", "difference", "low"),
    Metric("kv_usage_mean", "KV usage, mean", "share", "difference", None),
    Metric("kv_usage_max", "KV usage, highest", "share", "difference", None),
)


def figures(run: Run) -> Figures | None:
    """The figures of a run as far as it went; None if nothing has been answered."""
    if not run.requests:
        return None
    tpot = [request.tpot for request in run.requests if request.tpot is not None]
    last = run.samples[-1] if run.samples else None
    return Figures(
        **_percentiles("ttft", [request.ttft for request in run.requests]),
        **(_percentiles("tpot", tpot) if tpot else dict.fromkeys(_names("tpot"))),
        **_percentiles("e2e", [request.e2e for request in run.requests]),
        output_tps=sum(request.output_tokens for request in run.requests) / run.duration,
        hit_rate=last.hits / last.queries if last and last.queries else None,
        images_encoded=run.images_encoded,
        preemptions=last.preemptions if last else None,
        kv_usage_mean=_mean_usage(run.samples),
        kv_usage_max=max((sample.kv_usage for sample in run.samples), default=None),
    )


def ttft_by_turn(requests: Sequence[Request], percentile: float) -> list[float]:
    """A percentile of the TTFT of each turn, in seconds."""
    turns: dict[int, list[float]] = {}
    for request in requests:
        turns.setdefault(request.turn, []).append(request.ttft)
    return [float(np.percentile(turns[turn], percentile)) for turn in sorted(turns)]


def _names(name: str) -> list[str]:
    return [f"{name}_p{rank}" for rank in (50, 90, 99)]


def _percentiles(name: str, values: Sequence[float]) -> dict[str, float]:
    found = np.percentile(values, [50, 90, 99])
    return {key: float(value) for key, value in zip(_names(name), found, strict=True)}


def _mean_usage(samples: Sequence[Sample]) -> float | None:
    """The mean over time: a busy server answers late, so samples are not evenly spaced."""
    if len(samples) < 2:
        return samples[0].kv_usage if samples else None
    times = [sample.time for sample in samples]
    widths = np.diff(times)
    if not widths.sum():
        return fmean(sample.kv_usage for sample in samples)
    middles = [(a.kv_usage + b.kv_usage) / 2 for a, b in pairwise(samples)]
    return float(np.average(middles, weights=widths))


def _range(low: str, high: str) -> str:
    number, _, unit = low.partition(" ")
    return f"{number if high.endswith(f' {unit}') else low} to {high}"


def _digits(seconds: float) -> int:
    return 0 if seconds >= 0.1 else 1 if seconds >= 0.01 else 2
