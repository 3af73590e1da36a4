# SPDX-License-Identifier: Apache-2.0
"""What differs, and when it is too much."""

import pytest

from vllm_radix.bench.parity.compare import chance, compare, judge
from vllm_radix.bench.parity.results import ArmResult, Counts

from .samples import ANSWERS, arm, task

REFERENCE = arm("no-cache", hits=0)
ONE_WRONG = ("Rome", "Oslo in Norway", *ANSWERS[2:])
TWO_WRONG = ("Rom", *ONE_WRONG[1:])


def judgement(stock: ArmResult, radix: ArmResult, stress: bool = False) -> str:
    comparisons = compare(REFERENCE, stock), compare(REFERENCE, radix)
    return " ".join(judge(*comparisons, radix, stress))


def test_a_difference_is_listed_with_where_it_starts() -> None:
    found = compare(REFERENCE, arm("radix", *ONE_WRONG))
    assert (found.compared, found.different) == (5, 1)
    (one,) = found.differences
    assert (one.task, one.doc_id, one.position) == ("cities", 1, 4)
    assert (one.reference, one.answer) == ("Oslo", "Oslo in Norway")
    assert one.reference_scores == {"exact_match,none": 1.0}
    assert one.scores == {"exact_match,none": 0.0}


def test_a_long_answer_is_shown_around_the_difference() -> None:
    long = "a" * 500
    reference = arm("no-cache", f"{long}b{long}", *ANSWERS[1:])
    (one,) = compare(reference, arm("radix", f"{long}c{long}", *ANSWERS[1:])).differences
    assert one.position == 500
    assert one.reference == "a" * 20 + "b" + "a" * 59
    assert one.answer == "a" * 20 + "c" + "a" * 59


def test_answers_to_other_prompts_are_not_compared() -> None:
    other = arm("radix", *ONE_WRONG)
    other.tasks["cities"].samples[1].prompt_hash = "another prompt"
    found = compare(REFERENCE, other)
    assert (found.compared, found.different, found.other_prompts) == (4, 0, 1)
    assert "1 prompts were not the same on all arms" in judgement(arm("stock"), other)


def test_parity() -> None:
    assert judgement(arm("stock"), arm("radix")) == ""
    assert judgement(arm("stock", *ONE_WRONG), arm("radix")) == ""


def test_as_many_differences_as_stock_are_parity() -> None:
    assert judgement(arm("stock", *ONE_WRONG), arm("radix", *ONE_WRONG)) == ""


def test_one_more_difference_than_stock_is_none() -> None:
    text = judgement(arm("stock", *ONE_WRONG), arm("radix", *TWO_WRONG))
    assert "differ from those without a cache in 2 of 5 samples with the radix tree, and in 1" in (
        text
    )
    assert "1 differ with the tree alone, 0 with vLLM's alone" in text


def test_a_metric_that_moves_further_than_with_stock_is_none() -> None:
    radix = arm("radix", *ONE_WRONG)
    radix.tasks["cities"].metrics["exact_match,none"] = 0.4
    text = judgement(arm("stock", *ONE_WRONG), radix)
    assert text.startswith("cities, exact_match,none: -0.2000 against no cache with the radix tree")
    assert "+0.0000 with vLLM's cache" in text


def test_without_hits_nothing_is_shown() -> None:
    text = judgement(arm("stock"), arm("radix", hits=0))
    assert text.startswith("The radix tree had no hits, so this run proves nothing")


def test_log_likelihoods_are_no_evidence() -> None:
    def scored(name: str, *answers: str) -> ArmResult:
        return arm(name, choices=task(*answers, output_type="multiple_choice"))

    reference, stock = scored("no-cache", *ANSWERS), scored("stock", *ANSWERS)
    radix = scored("radix", *TWO_WRONG)
    comparison = compare(reference, radix)
    assert (comparison.compared, comparison.different) == (5, 0)
    assert [(one.task, one.is_evidence) for one in comparison.differences] == [
        ("choices", False),
        ("choices", False),
    ]
    assert judge(compare(reference, stock), comparison, radix, stress=False) == []
    for one in (reference, stock, radix):
        del one.tasks["cities"]
    (failure,) = judge(compare(reference, stock), compare(reference, radix), radix, stress=False)
    assert failure.startswith("No task generates text")


def test_stress_that_did_not_press_shows_nothing() -> None:
    calm, pressed = arm("radix"), arm("radix")
    calm.counts = Counts(queries=1000, hits=500, recycled_blocks=4)
    assert judgement(arm("stock"), pressed, stress=True) == ""
    assert judgement(arm("stock"), calm) == ""
    text = judgement(arm("stock"), calm, stress=True)
    assert text.startswith(
        "With the radix tree there were 0 preemptions and 4 blocks handed out again"
    )


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [(0, 0, 1.0), (1, 0, 1.0), (5, 0, 2 / 2**5), (4, 1, 2 * 6 / 2**5), (3, 3, 1.0)],
)
def test_chance(first: int, second: int, expected: float) -> None:
    assert chance(first, second) == chance(second, first) == pytest.approx(expected)
