# SPDX-License-Identifier: Apache-2.0
"""Rounds become medians, spreads and comparisons that know noise."""

import math

import pytest

from vllm_radix.bench.ab import stats
from vllm_radix.bench.ab.figures import METRICS, figures, ttft_by_turn
from vllm_radix.bench.ab.results import Change, Results, Run

from .samples import make_results, make_run

BY_KEY = {metric.key: metric for metric in METRICS}


def results_of(**values: list[tuple[float | None, float | None]]) -> Results:
    """Rounds in which the base and the arm "radix" have the given figures."""
    (key, pairs) = next(iter(values.items()))
    results = make_results(rounds=len(pairs))
    for number, pair in enumerate(pairs, 1):
        for arm, value in zip(("stock", "radix"), pair, strict=True):
            (run,) = [one for one in results.complete(arm) if one.round == number]
            assert run.figures is not None
            setattr(run.figures, key, value)
    return results


def change_of(results: Results, key: str) -> Change | None:
    return next((c for c in stats.changes(results) if (c.arm, c.metric) == ("radix", key)), None)


def test_the_spread_is_over_the_rounds() -> None:
    assert stats.spread([3.0, 1.0, 2.0]) == stats.Spread(2.0, 1.0, 3.0)
    assert stats.spread([]) is None


def test_the_interval_is_students() -> None:
    mean, low, high = stats.interval([1.0, 2.0, 3.0])
    # Standard deviation 1, three values: 4.303 / sqrt(3).
    assert mean == 2.0
    assert (low, high) == (pytest.approx(-0.4843, abs=1e-3), pytest.approx(4.4843, abs=1e-3))
    many = [0.0, 1.0] * 50
    assert stats.interval(many)[2] - 0.5 == pytest.approx(1.96 * 0.50252 / 10, rel=1e-3)


def test_ratios_are_taken_round_by_round() -> None:
    # Rounds that differ fourfold, with ratios that hardly do.
    change = change_of(results_of(ttft_p50=[(1.0, 0.5), (4.0, 2.04), (2.0, 0.98)]), "ttft_p50")
    assert change is not None
    assert change.values == pytest.approx([0.5, 0.51, 0.49])
    assert change.centre == pytest.approx(math.exp(sum(map(math.log, change.values)) / 3))
    assert change.low is not None
    assert change.high is not None
    assert 0.45 < change.low < 0.5 < change.high < 0.55
    assert change.verdict == "better"


@pytest.mark.parametrize(
    ("key", "pairs", "verdict"),
    [
        ("ttft_p50", [(1.0, 1.1), (1.0, 0.9), (1.0, 1.02)], "inside the noise"),
        ("ttft_p50", [(1.0, 0.5), (1.0, 0.9)], "inside the noise"),
        ("ttft_p50", [(1.0, 0.5)], "too few rounds"),
        ("ttft_p50", [(1.0, 1.5), (1.0, 1.51), (1.0, 1.49)], "worse"),
        ("output_tps", [(100.0, 150.0), (100.0, 151.0), (100.0, 149.0)], "better"),
        ("hit_rate", [(0.5, 0.8), (0.5, 0.81), (0.5, 0.79)], "better"),
        ("hit_rate", [(0.5, 0.5), (0.5, 0.5), (0.5, 0.5)], "inside the noise"),
        ("hit_rate", [(0.0, 0.1), (0.0, 0.11), (0.0, 0.1)], "better"),
        ("kv_usage_mean", [(0.5, 0.8), (0.5, 0.81), (0.5, 0.79)], "higher"),
        ("preemptions", [(0.0, 9.0), (0.0, 10.0), (0.0, 11.0)], "worse"),
    ],
)
def test_verdicts(key: str, pairs: list[tuple[float, float]], verdict: str) -> None:
    change = change_of(results_of(**{key: pairs}), key)
    assert change is not None
    assert change.verdict == verdict


def test_what_one_arm_lacks_is_not_compared() -> None:
    assert change_of(results_of(hit_rate=[(None, 0.5), (None, 0.5)]), "hit_rate") is None
    results = results_of(ttft_p50=[(1.0, 0.5), (1.0, 0.5), (1.0, 0.5)])
    results.complete("radix")[0].is_complete = False
    change = change_of(results, "ttft_p50")
    assert change is not None
    assert change.values == [0.5, 0.5]
    assert stats.of_arm(results, "radix", BY_KEY["ttft_p50"]) == stats.Spread(0.5, 0.5, 0.5)


def test_the_figures_of_a_run() -> None:
    run = make_run("stock", 1, 0.4, 0.5)
    found = run.figures
    assert found is not None
    ordered = sorted(request.ttft for request in run.requests)
    assert ordered[24] <= found.ttft_p50 <= ordered[25]
    assert found.ttft_p99 <= ordered[-1]
    assert found.output_tps == 50 * 30 / 10.0
    assert found.hit_rate == 0.5
    assert found.kv_usage_max == 10 / 12
    assert found.kv_usage_mean == pytest.approx(5 / 12)
    run.samples, run.requests = [], run.requests[:1]
    run.requests[0].tpot = None
    found = figures(run)
    assert found is not None
    assert (found.tpot_p50, found.hit_rate, found.preemptions) == (None, None, None)
    empty = Run(arm="a", round=1, seed=0, version="", cache="", num_calls=3)
    assert figures(empty) is None


def test_ttft_by_turn() -> None:
    run = make_run("stock", 1, 0.4, 0.5, turns=2)
    first = sorted(request.ttft for request in run.requests if request.turn == 0)
    medians = ttft_by_turn(run.requests, 50)
    assert len(medians) == 2
    assert first[4] <= medians[0] <= first[5]


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("ttft_p50", 123.45, "123 s"),
        ("ttft_p50", 12.345, "12.3 s"),
        ("ttft_p50", 1.5, "1.50 s"),
        ("ttft_p50", 0.0123, "12.3 ms"),
        ("ttft_p50", 0.00123, "1.23 ms"),
        ("hit_rate", 0.8768, "87.7%"),
        ("output_tps", 12345.6, "12,346 tok/s"),
        ("output_tps", 12.345, "12.3 tok/s"),
        ("preemptions", 0.0, "0"),
        ("hit_rate", None, "-"),
    ],
)
def test_figures_as_text(key: str, value: float | None, text: str) -> None:
    assert BY_KEY[key].show(value) == text


def test_ranges_name_their_unit_once() -> None:
    assert BY_KEY["ttft_p50"].show_range(0.25, 0.3) == "250 to 300 ms"
    assert BY_KEY["ttft_p50"].show_range(0.25, 30) == "250 ms to 30.0 s"
    assert BY_KEY["preemptions"].show_range(2, 3) == "2 to 3"
    assert BY_KEY["hit_rate"].show_change_range(-0.01, 0.04) == "-1.0 to +4.0 points"
    assert BY_KEY["ttft_p50"].show_change_range(0.4, 1.2) == "0.40x to 1.20x"
    assert BY_KEY["ttft_p50"].show_change_range(0.001, 1e6) == "<0.01x to >100x"
