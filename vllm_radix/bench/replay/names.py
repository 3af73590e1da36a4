# SPDX-License-Identifier: Apache-2.0
"""What a user gives on the command line for a workload, a scheduler or a capacity."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from vllm_radix.bench.problems import first_problem

_COUNT = re.compile(r"(\d+(?:\.\d+)?)([kKmM]?)")
_MAX_COUNT = 1_000_000_000
_FACTORS = {"": 1, "k": 1_000, "m": 1_000_000}


def split_options(text: str) -> tuple[str, dict[str, Any]]:
    """Split ``name`` or ``name:{"option": value}`` into the name and its options.

    Raises:
        ValueError: what follows the colon is no JSON object.
    """
    name, colon, options = text.partition(":")
    if not colon:
        return name, {}
    try:
        parsed = json.loads(options)
    except json.JSONDecodeError as error:
        raise ValueError(f"{text!r}: what follows the colon is no JSON ({error}).") from None
    if not isinstance(parsed, dict):
        raise ValueError(f'{text!r}: what follows the colon must be like {{"option": value}}.')
    return name, parsed


def parameter_error(
    name: str, error: ValidationError, given: Mapping[str, Any], known: Iterable[str]
) -> ValueError:
    """What is wrong with the parameters of ``name``, in one sentence, and which ones there are."""
    problem = first_problem(error, given)
    return ValueError(f"{name}: {problem}; the parameters are {', '.join(known)}.")


def parse_counts(text: str) -> list[int]:
    """Numbers of tokens from ``60000``, ``60k``, ``1.5m``, or several with commas between.

    Raises:
        ValueError: something else, nothing above zero, or more than a thousand million.
    """
    counts = []
    for part in text.split(","):
        found = _COUNT.fullmatch(part.strip())
        count = float(found[1]) * _FACTORS[found[2].lower()] if found else 0.0
        if count > _MAX_COUNT:
            raise ValueError(
                f"{part!r} is more than the {_MAX_COUNT // 10**6:,}m tokens there may be."
            )
        if not round(count):
            raise ValueError(f"{part!r} is no number of tokens: write 60000, 60k or 1.5m.")
        counts.append(round(count))
    return counts
