# SPDX-License-Identifier: Apache-2.0
"""What the terminal shows."""

import io

from rich.console import Console

from vllm_radix.bench.ab.results import Results
from vllm_radix.bench.ab.view import show_answers, table

from .samples import make_results


def shown(results: Results) -> str:
    console = Console(width=300, record=True, file=io.StringIO())
    console.print(table(results))
    return console.export_text()


def test_the_arms_are_compared() -> None:
    text = shown(make_results())
    assert "against stock" in text and "Against stock" in text
    assert "answers as of no-cache" in text and "50 of 50" in text


def test_figures_that_nothing_tells_are_left_out() -> None:
    results = make_results()
    assert "images encoded" not in shown(results)
    figures = results.runs[-1].figures
    assert figures is not None
    figures.images_encoded = 15
    (line,) = (line for line in shown(results).splitlines() if "images encoded" in line)
    assert [cell.strip() for cell in line.split("│")[2:-1]] == ["-", "-", "-", "15", "-"]


def test_one_arm_alone_is_compared_with_nothing() -> None:
    results = make_results()
    results.arms, results.base = results.arms[:1], results.arms[0].name
    results.runs = [run for run in results.runs if run.arm == results.base]
    results.comparisons = []
    text = shown(results)
    assert "TTFT" in text
    assert "gainst" not in text and "answers" not in text and "reference" not in text


def test_answers_to_other_prompts_are_counted_apart() -> None:
    comparisons = make_results().comparisons[:1]
    assert show_answers(comparisons) == "50 of 50"
    comparisons[0].other_prompts = 3
    assert show_answers(comparisons) == "50 of 50 (3 to other prompts)"
