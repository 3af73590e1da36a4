# SPDX-License-Identifier: Apache-2.0
"""Whether two arms gave the same answers, and how near a tie they were where they did not.

Batches of different shapes round differently, so where the two most likely tokens are nearly
tied, even two servers without any cache may part. The gap tells such a tie from a defect.
"""

from collections.abc import Mapping
from typing import TypeAlias

from vllm_radix.bench.ab.client import Answer, Choice
from vllm_radix.bench.ab.results import Comparison, Difference, Side

CallId: TypeAlias = tuple[str, int, int]
"""Session, turn, and which of the turn's calls."""
Answers: TypeAlias = Mapping[CallId, Answer]

MAX_DIFFERENCES = 50
MAX_TEXT = 80


def compare(
    reference: str, expected: Answers, arm: str, got: Answers, round_number: int
) -> Comparison:
    """The answers of ``arm`` against those of ``reference``."""
    compared = identical = other_prompts = 0
    drifts: list[float] = []
    differences: list[Difference] = []
    for call_id in sorted(expected.keys() | got.keys()):
        ours, theirs = got.get(call_id), expected.get(call_id)
        if ours is None or theirs is None or ours.prompt_key() != theirs.prompt_key():
            one = ours or theirs
            other_prompts += len(one.choices) if one else 0
            continue
        for number, (a, b) in enumerate(zip(theirs.choices, ours.choices, strict=True)):
            compared += 1
            position = first_difference(a, b)
            drifts += [
                abs(x - y)
                for x, y in zip(a.logprobs[:position], b.logprobs[:position], strict=False)
            ]
            if position is None:
                identical += 1
            elif len(differences) < MAX_DIFFERENCES:
                difference = _difference(round_number, call_id, number, position, a, b)
                difference.reference.arm, difference.other.arm = reference, arm
                differences.append(difference)
    return Comparison(
        round=round_number,
        reference=reference,
        arm=arm,
        sampled=any(answer.call.temperature > 0 for answer in expected.values()),
        compared=compared,
        identical=identical,
        other_prompts=other_prompts,
        max_logprob_difference=max(drifts, default=None),
        differences=differences,
    )


def first_difference(a: Choice, b: Choice) -> int | None:
    """Where two answers part: a token, or a character where there are no tokens; None if never."""
    ours, theirs = (a.tokens, b.tokens) if a.tokens and b.tokens else (a.text, b.text)
    for position, (x, y) in enumerate(zip(ours, theirs, strict=False)):
        if x != y:
            return position
    return None if len(ours) == len(theirs) else min(len(ours), len(theirs))


def _difference(
    round_number: int, call_id: CallId, number: int, position: int, a: Choice, b: Choice
) -> Difference:
    session, turn, call = call_id
    has_tokens = bool(a.tokens and b.tokens)
    common = _common_length(a.text, b.text)
    return Difference(
        round=round_number,
        session=session,
        turn=turn,
        call=call,
        choice=number,
        position=position if has_tokens else None,
        common_text=a.text[max(common - MAX_TEXT, 0) : common],
        reference=_side(a, b, position if has_tokens else None, common),
        other=_side(b, a, position if has_tokens else None, common),
    )


def _side(one: Choice, other: Choice, position: int | None, common: int) -> Side:
    side = Side(arm="", token=None, text=one.text[common : common + MAX_TEXT], gap=None)
    if position is None or position >= len(one.tokens):
        return side
    side.token = one.tokens[position]
    if position >= len(one.alternatives) or position >= len(other.tokens):
        return side
    chances = one.alternatives[position]
    theirs = chances.get(other.tokens[position])
    if theirs is not None:
        side.gap = one.logprobs[position] - theirs
    elif chances:
        side.gap = one.logprobs[position] - min(chances.values())
        side.gap_is_bound = True
    return side


def _common_length(a: str, b: str) -> int:
    for position, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return position
    return min(len(a), len(b))
