# SPDX-License-Identifier: Apache-2.0
"""``report.html``: one file that holds all it shows and asks nobody for anything."""

import base64
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment

from vllm_radix.bench.ab import stats
from vllm_radix.bench.ab.figures import METRICS, Metric
from vllm_radix.bench.ab.plots import colours, plots
from vllm_radix.bench.ab.results import Results
from vllm_radix.bench.ab.view import find_change, show_answers, show_change, show_spread

# Before a change.
_SIGNS = {"inside the noise": "~ ", "too few rounds": "? "}
_HEADLINES = ("hit_rate", "ttft_p50", "ttft_p99", "output_tps")
_MAX_SHOWN = 20
"""Differences shown; the others are in the results."""


def write(results: Results, path: Path) -> None:
    """Write the report; an earlier one is replaced at once or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_text(render(results), encoding="utf-8")
    part.replace(path)


def render(results: Results) -> str:
    """The report as HTML."""
    template = resources.files("vllm_radix.bench.ab").joinpath("report.html.jinja").read_text()
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    shown = [
        {
            "title": plot.title,
            "about": plot.about,
            "source": f"data:image/svg+xml;base64,{base64.b64encode(plot.svg).decode()}",
        }
        for plot in plots(results)
    ]
    return environment.from_string(template).render(
        results=results,
        colours=colours(results),
        plots=shown,
        headlines=_headlines(results),
        rows=[_row(results, metric) for metric in stats.known(results)],
        answers=_answers(results),
        differences=_differences(results),
        servers=_servers(results),
        rounds_done=max((len(results.complete(arm.name)) for arm in results.arms), default=0),
        rule=stats.RULE,
    )


def _row(results: Results, metric: Metric) -> dict[str, Any]:
    cells = []
    for arm in results.arms:
        found = stats.of_arm(results, arm.name, metric)
        change = None if arm.name == results.base else find_change(results, arm.name, metric)
        text, _, interval = (show_change(metric, change) if change else "").partition(" [")
        cells.append(
            {
                "arm": arm.name,
                "median": metric.show(found.median) if found else "-",
                "spread": show_spread(metric, found).partition(" (")[2].rstrip(")"),
                "change": text,
                "interval": interval.rstrip("]"),
                "sign": _SIGNS.get(change.verdict, "") if change else "",
                "verdict": change.verdict if change else "",
                "rounds": ", ".join(map(metric.show_change, change.values)) if change else "",
            }
        )
    return {"label": metric.label, "cells": cells}


def _headlines(results: Results) -> list[dict[str, Any]]:
    """The figures that matter most, of each arm against the base."""
    metrics = [metric for metric in METRICS if metric.key in _HEADLINES]
    lines = []
    # The last arm is the one that people come for.
    for arm in reversed(results.arms):
        if arm.name == results.base:
            continue
        tiles = []
        for metric in metrics:
            ours = stats.of_arm(results, arm.name, metric)
            base = stats.of_arm(results, results.base, metric)
            change = find_change(results, arm.name, metric)
            if ours is None or base is None or change is None or change.centre is None:
                continue
            tiles.append(
                {
                    "label": metric.label,
                    "value": metric.show(ours.median),
                    "base": metric.show(base.median),
                    "change": metric.show_change(change.centre),
                    "verdict": change.verdict,
                }
            )
        if tiles:
            lines.append({"arm": arm.name, "tiles": tiles})
    return lines


def _answers(results: Results) -> list[dict[str, Any]]:
    found = []
    for arm in results.arms[1:]:
        of_arm = [one for one in results.comparisons if one.arm == arm.name]
        if not of_arm:
            continue
        drifts = [
            one.max_logprob_difference for one in of_arm if one.max_logprob_difference is not None
        ]
        gaps = [
            side.gap
            for one in of_arm
            for difference in one.differences
            for side in (difference.reference, difference.other)
            if side.gap is not None
        ]
        found.append(
            {
                "arm": arm.name,
                "identical": show_answers(of_arm),
                "different": sum(one.compared - one.identical for one in of_arm),
                "other_prompts": sum(one.other_prompts for one in of_arm),
                "drift": f"{max(drifts):.2g}" if drifts else "-",
                "gap": f"{max(gaps):.2g}" if gaps else "-",
                "sampled": any(one.sampled for one in of_arm),
            }
        )
    return found


def _differences(results: Results) -> dict[str, Any]:
    every = [
        difference for comparison in results.comparisons for difference in comparison.differences
    ]
    num_all = sum(one.compared - one.identical for one in results.comparisons)
    return {"shown": every[:_MAX_SHOWN], "num_all": num_all}


def _servers(results: Results) -> dict[str, str]:
    """What served each arm's runs, and how its cache was at their start, in words."""
    ways: dict[str, list[str]] = {}
    for run in results.runs:
        of_arm = ways.setdefault(run.arm, [])
        way = f"vLLM {run.version}; cache at the start of a run: {run.cache}"
        if way not in of_arm:
            of_arm.append(way)
    return {arm: "; ".join(of_arm) for arm, of_arm in ways.items()}
