# SPDX-License-Identifier: Apache-2.0
"""Numbers that users give: finite, and so small that they can be meant.

JSON as Python reads it has NaN and Infinity; a clock that meets one of them never goes on.
"""

import math
from typing import Annotated, Any, TypeAlias

import typer
from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

MAX_TOKENS = 10_000_000
"""Of one text, image or block: more than any model's context."""
_MAX_COUNT = 10_000_000
# Three thousand years: times since 1970 are below, and the clock still tells microseconds there.
_MAX_SECONDS = 1e11


def _two(limits: Any) -> Any:
    if isinstance(limits, list | tuple) and len(limits) == 2:
        return limits
    raise PydanticCustomError("range", "Input should be [low, high], two whole numbers")


def _ascending(limits: tuple[int, int]) -> tuple[int, int]:
    low, high = limits
    if low > high:
        raise PydanticCustomError(
            "range", "The first number, {low}, is above the second", {"low": low}
        )
    return limits


NumTokens: TypeAlias = Annotated[int, Field(ge=0, le=MAX_TOKENS)]
SomeTokens: TypeAlias = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
"""At least one."""
Count: TypeAlias = Annotated[int, Field(ge=1, le=_MAX_COUNT)]
Range: TypeAlias = Annotated[tuple[Count, Count], BeforeValidator(_two), AfterValidator(_ascending)]
"""The lowest and the highest, both included."""
Seconds: TypeAlias = Annotated[float, Field(ge=0, le=_MAX_SECONDS, allow_inf_nan=False)]
Milliseconds: TypeAlias = Annotated[float, Field(ge=0, le=_MAX_SECONDS * 1e3, allow_inf_nan=False)]


def finite(value: float | None) -> float | None:
    """The value of an option.

    Raises:
        typer.BadParameter: it is infinite or no number, which no minimum or maximum tells.
    """
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number.")
    return value
