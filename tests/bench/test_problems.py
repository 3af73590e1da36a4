# SPDX-License-Identifier: Apache-2.0
"""A path names what a user wrote, and nothing else."""

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, TypeAdapter, ValidationError, model_validator

from vllm_radix.bench.problems import first_problem


class Left(BaseModel):
    type: Literal["left"]
    left: dict[str, int]


class Right(BaseModel):
    type: Literal["right"]
    size: int = Field(alias="in")
    name: str | int = ""


class Both(BaseModel):
    sides: list[Annotated[Left | Right, Field(discriminator="type")]]

    @model_validator(mode="after")
    def _is_short(self) -> "Both":
        if len(self.sides) > 2:
            raise ValueError("too long")
        return self


def left(**values: Any) -> dict[str, Any]:
    return {"type": "left", "left": values}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({}, "sides: Field required"),
        (3, "Input should be a valid dictionary or instance of Both"),
        ({"sides": [left()] * 3}, "Value error, too long"),
        ({"sides": [left(), {"type": "left"}]}, "sides[1].left: Field required"),
        ({"sides": [left(a="b")]}, "sides[0].left.a: Input should be a valid integer"),
        ({"sides": [left(left="b")]}, "sides[0].left.left: Input should be a valid integer"),
        ({"sides": [{"type": "right"}]}, "sides[0].in: Field required"),
        ({"sides": [{"type": "right", "in": 1, "name": [2]}]}, "sides[0].name: Input should be"),
        ({"sides": [{"type": "right", "in": 1, "name": {}}]}, "sides[0].name: Input should be"),
        ({"sides": [{"type": "up"}]}, "sides[0]: Input tag 'up' found using 'type' does not"),
    ],
)
def test_a_path_is_that_of_the_json(value: object, expected: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(Both).validate_python(value)
    assert first_problem(caught.value, value).startswith(expected)
