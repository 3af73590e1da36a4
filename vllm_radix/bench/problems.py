# SPDX-License-Identifier: Apache-2.0
"""What is wrong with JSON that a user gave, in words."""

from typing import Any

from pydantic import ValidationError


def first_problem(error: ValidationError, value: Any) -> str:
    """Where the first thing that is wrong is in ``value``, as ``prompt[0].tokens``, and what it is.

    Items count from 0, as in JSON paths. Nothing stands before the sentence if all of it is wrong.
    """
    problem = error.errors()[0]
    where = _path(problem["loc"], value, is_missing=problem["type"] == "missing")
    return f"{where}: {problem['msg']}" if where else problem["msg"]


def _path(location: tuple[int | str, ...], value: Any, *, is_missing: bool) -> str:
    """Pydantic's location without the names that it gives to the members of unions."""
    path = ""
    may_be_kind = False
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
            value = value[part]
            may_be_kind = True
            continue
        # Members that are told apart by their "type" go by that, and it may be a key as well.
        is_kind = may_be_kind and isinstance(value, dict) and value.get("type") == part
        may_be_kind = False
        if is_kind or not isinstance(value, dict) or not (is_missing or part in value):
            continue
        path += f".{part}"
        value = value.get(part)
    return path.removeprefix(".")
