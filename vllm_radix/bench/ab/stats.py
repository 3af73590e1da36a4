# SPDX-License-Identifier: Apache-2.0
"""Medians, spreads and comparisons over rounds, and when a difference is no noise.

Arms are compared round by round, since the machine and the texts of one round are the same for
all of them. A difference is outside the noise if the 95 % confidence interval (Student's t, over
the rounds) of the mean logarithm of the ratios leaves out 0; for shares and counts, which may be
zero, of the mean difference. A single round has no spread, so it proves nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

from vllm_radix.bench.ab.figures import METRICS, Metric
from vllm_radix.bench.ab.results import Change, Results, Verdict

RULE = (
    "A difference is outside the noise if the 95 % confidence interval (Student's t) of the "
    "round-by-round ratios, or differences, leaves out no change. Of twenty figures that do not "
    "differ, about one will seem to."
)
# The 0.975 quantiles for 1, 2, ... degrees of freedom.
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_T_NORMAL = 1.96


@dataclass(frozen=True)
class Spread:
    """One figure of one arm over its complete rounds."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread | None:
    """The median with the lowest and the highest; None of nothing."""
    return Spread(median(values), min(values), max(values)) if values else None


def of_arm(results: Results, arm: str, metric: Metric) -> Spread | None:
    """The spread of a figure over an arm's complete runs."""
    values = [getattr(run.figures, metric.key) for run in results.complete(arm) if run.figures]
    return spread([value for value in values if value is not None])


def known(results: Results) -> list[Metric]:
    """The figures that any complete run has."""
    return [
        metric
        for metric in METRICS
        if any(of_arm(results, arm.name, metric) is not None for arm in results.arms)
    ]


def changes(results: Results) -> list[Change]:
    """Every figure of every arm but the base against the base."""
    return [
        change
        for arm in results.arms
        if arm.name != results.base
        for metric in METRICS
        if (change := _change(results, arm.name, metric)) is not None
    ]


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95 % confidence interval of the mean of two or more values."""
    mean = fmean(values)
    freedom = len(values) - 1
    t = _T[freedom - 1] if freedom <= len(_T) else _T_NORMAL
    margin = t * stdev(values) / math.sqrt(len(values))
    return mean, mean - margin, mean + margin


def _change(results: Results, arm: str, metric: Metric) -> Change | None:
    pairs = _pairs(results, arm, metric)
    if metric.kind == "ratio":
        values = [ours / base for base, ours in pairs if base > 0 and ours > 0]
        scaled = [math.log(value) for value in values]
    else:
        values = [ours - base for base, ours in pairs]
        scaled = values
    if not values:
        return None
    centre, low, high = interval(scaled) if len(scaled) > 1 else (scaled[0], None, None)
    if metric.kind == "ratio":
        centre = math.exp(centre)
        low, high = (None if end is None else math.exp(end) for end in (low, high))
    return Change(
        metric=metric.key,
        arm=arm,
        base=results.base,
        kind=metric.kind,
        values=values,
        centre=centre,
        low=low,
        high=high,
        verdict=_verdict(metric, low, high),
    )


def _pairs(results: Results, arm: str, metric: Metric) -> list[tuple[float, float]]:
    """The base's and the arm's figure of each round that both completed."""
    base = {run.round: run.figures for run in results.complete(results.base)}
    pairs = []
    for run in results.complete(arm):
        ours = getattr(run.figures, metric.key)
        theirs = getattr(base.get(run.round), metric.key, None)
        if ours is not None and theirs is not None:
            pairs.append((theirs, ours))
    return pairs


def _verdict(metric: Metric, low: float | None, high: float | None) -> Verdict:
    if low is None or high is None:
        return "too few rounds"
    none = 1.0 if metric.kind == "ratio" else 0.0
    if low <= none <= high:
        return "inside the noise"
    if metric.better is None:
        return "higher" if low > none else "lower"
    return "better" if (low > none) == (metric.better == "high") else "worse"
