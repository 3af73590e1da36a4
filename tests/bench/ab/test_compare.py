# SPDX-License-Identifier: Apache-2.0
"""Two arms' answers are the same, or part somewhere, by so much."""

import pytest

from vllm_radix.bench.ab.client import Answer, Choice
from vllm_radix.bench.ab.compare import MAX_DIFFERENCES, Answers, compare, first_difference
from vllm_radix.bench.ab.workloads.base import Call

# Each token's text is a word.
WORDS = ("one", "two", "three", "four")


def choice(*tokens: int, logprob: float = -0.5, second: dict[int, float] | None = None) -> Choice:
    """An answer; ``second`` gives the runners-up at every position."""
    return Choice(
        text="".join(f" {WORDS[token]}" for token in tokens),
        tokens=list(tokens),
        logprobs=[logprob] * len(tokens),
        alternatives=[{token: logprob, **(second or {})} for token in tokens],
    )


def answers(*choices: Choice, prompt: str = "prompt", temperature: float = 0.0) -> Answers:
    call = Call(prompt, 4, n=len(choices), temperature=temperature)
    return {("session", 0, 0): Answer(call, 0.0, list(choices))}


def test_equal_answers() -> None:
    found = compare("a", answers(choice(0, 1, 2)), "b", answers(choice(0, 1, 2, logprob=-0.51)), 1)
    assert (found.compared, found.identical, found.other_prompts) == (1, 1, 0)
    assert found.max_logprob_difference == pytest.approx(0.01)
    assert not found.differences
    assert not found.sampled


def test_the_first_difference_and_its_gaps() -> None:
    a = choice(0, 1, 2, second={3: -0.6})
    b = choice(0, 1, 3, logprob=-0.7, second={2: -0.75})
    found = compare("a", answers(a), "b", answers(b), 4)
    assert (found.compared, found.identical) == (1, 0)
    (difference,) = found.differences
    assert (difference.round, difference.session, difference.position) == (4, "session", 2)
    assert difference.common_text == " one two "
    assert (difference.reference.arm, difference.reference.token) == ("a", 2)
    assert difference.reference.gap == pytest.approx(0.1)
    assert (difference.other.arm, difference.other.token) == ("b", 3)
    assert difference.other.gap == pytest.approx(0.05)
    assert difference.reference.text == "three"
    # Up to there, the same tokens had logprobs 0.2 apart.
    assert found.max_logprob_difference == pytest.approx(0.2)


def test_a_gap_to_an_unlikely_token_is_a_bound() -> None:
    a = choice(0, second={1: -2.0})
    found = compare("a", answers(a), "b", answers(choice(3)), 1)
    side = found.differences[0].reference
    assert side.gap == pytest.approx(1.5)
    assert side.gap_is_bound


def test_an_answer_that_ends_earlier() -> None:
    found = compare("a", answers(choice(0, 1)), "b", answers(choice(0, 1, 2)), 1)
    (difference,) = found.differences
    assert difference.position == 2
    assert difference.reference.token is None
    assert difference.reference.gap is None
    assert difference.other.token == 2


def test_answers_to_other_prompts_are_not_compared() -> None:
    expected = answers(choice(0), choice(1), prompt="before")
    found = compare("a", expected, "b", answers(choice(0), choice(2), prompt="after"), 1)
    assert (found.compared, found.other_prompts) == (0, 2)
    found = compare("a", expected, "b", {}, 1)
    assert (found.compared, found.other_prompts) == (0, 2)


def test_each_of_several_answers_counts() -> None:
    expected = answers(choice(0), choice(1), choice(2), temperature=0.8)
    found = compare("a", expected, "b", answers(choice(0), choice(3), choice(2)), 1)
    assert (found.compared, found.identical) == (3, 2)
    assert found.differences[0].choice == 1
    assert found.sampled


def test_texts_are_compared_where_there_are_no_tokens() -> None:
    found = compare("a", answers(Choice("a lamp")), "b", answers(Choice("a lantern")), 1)
    (difference,) = found.differences
    assert difference.position is None
    assert (difference.common_text, difference.other.text) == ("a la", "ntern")
    assert first_difference(Choice("a"), Choice("a")) is None
    assert first_difference(Choice(""), Choice("a")) == 0


def test_only_so_many_differences_are_kept() -> None:
    many = MAX_DIFFERENCES + 5
    expected, got = (answers(*[choice(token) for _ in range(many)]) for token in (0, 1))
    found = compare("a", expected, "b", got, 1)
    assert found.compared - found.identical == many
    assert len(found.differences) == MAX_DIFFERENCES
