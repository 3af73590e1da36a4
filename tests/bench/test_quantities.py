# SPDX-License-Identifier: Apache-2.0
"""Numbers that users give are finite and in range."""

from typing import Any

import pytest
import typer
from pydantic import TypeAdapter, ValidationError

from vllm_radix.bench.quantities import (
    Count,
    Milliseconds,
    NumTokens,
    Range,
    Seconds,
    SomeTokens,
    finite,
)

NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (NumTokens, 0),
        (SomeTokens, 1),
        (SomeTokens, 10_000_000),
        (Count, 10_000_000),
        (Range, (3, 3)),
        # Times since 1970.
        (Seconds, 1.8e9),
        (Milliseconds, 1.8e12),
    ],
)
def test_what_can_be_meant_is_taken(kind: Any, value: object) -> None:
    assert TypeAdapter(kind).validate_python(value) == value


@pytest.mark.parametrize("kind", [NumTokens, SomeTokens, Count, Seconds, Milliseconds])
@pytest.mark.parametrize("value", [NAN, INFINITY, -INFINITY, -1, 10**15])
def test_what_cannot_be_meant_is_refused(kind: Any, value: float) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(kind).validate_python(value)


@pytest.mark.parametrize("kind", [SomeTokens, Count])
def test_some_is_more_than_none(kind: Any) -> None:
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        TypeAdapter(kind).validate_python(0)


def test_a_range_begins_with_its_lower_end() -> None:
    with pytest.raises(ValidationError, match="The first number, 9, is above the second"):
        TypeAdapter(Range).validate_python([9, 3])


@pytest.mark.parametrize("value", [-3, 5, "9", None, [1], [1, 2, 3], {"low": 1, "high": 2}])
def test_a_range_has_two_ends(value: object) -> None:
    with pytest.raises(ValidationError, match=r"Input should be \[low, high\], two whole numbers"):
        TypeAdapter(Range).validate_python(value)


def test_options_are_finite() -> None:
    assert finite(0.5) == 0.5
    assert finite(None) is None
    for value in (NAN, INFINITY, -INFINITY):
        with pytest.raises(typer.BadParameter, match="is not a finite number"):
            finite(value)
