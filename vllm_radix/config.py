# SPDX-License-Identifier: Apache-2.0
"""Options: ``--additional-config '{"radix": {...}}'``."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

SECTION = "radix"


class RadixConfig(BaseModel):
    """The plugin's options, checked.

    Each has a default that is right for most; see the README for when to change one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    eviction: Literal["lru", "lfu", "slru", "priority"] = Field(
        default="lru", description="Which cached prefixes go first when memory is needed."
    )
    free_watermark: float = Field(
        default=0.0,
        ge=0.0,
        le=1.0,
        description="Share of the KV blocks that is kept free by evicting ahead of need.",
    )
    token_granular: bool = Field(
        default=True,
        description="Reuse every matching token, copying the block in which a match ends.",
    )
    min_partial_tokens: int = Field(
        default=1,
        ge=1,
        description="Copy a block only if that saves computing at least so many tokens.",
    )
    schedule: Literal["affinity", "fcfs"] = Field(
        default="affinity",
        description="Order waiting requests by what is cached, or by arrival alone.",
    )
    patience: float = Field(
        default=10.0,
        ge=1.0,
        description="A request waits for at most so many times as many admissions as under fcfs.",
    )
    skip_hashing: bool = Field(
        default=True,
        description="Hash prompts only if KV events or a connector read the hashes.",
    )
    debug_checks: bool = Field(
        default=False, description="Verify every invariant of the cache in each step. Slow."
    )

    @classmethod
    def from_additional_config(cls, additional_config: Any) -> "RadixConfig":
        """Read the section ``radix`` of vLLM's ``additional_config``.

        Raises:
            ValueError: naming an option that is unknown or ill-typed, and the valid ones.
        """
        section = (
            additional_config.get(SECTION, {}) if isinstance(additional_config, Mapping) else {}
        )
        if isinstance(additional_config, Mapping):
            astray = sorted(additional_config.keys() & cls.model_fields.keys())
            if astray:
                raise ValueError(
                    f'--additional-config: {", ".join(astray)} must stand inside "{SECTION}": '
                    f'{{"{SECTION}": {{"{astray[0]}": ...}}}}.'
                )
        if not isinstance(section, Mapping):
            raise ValueError(
                f'--additional-config: "{SECTION}" must be an object with some of the options '
                f"{_valid_options()}, not {section!r}."
            )
        try:
            return cls.model_validate(dict(section))
        except ValidationError as error:
            raise ValueError(_sentence(error)) from None


def _valid_options() -> str:
    return ", ".join(RadixConfig.model_fields)


def _sentence(error: ValidationError) -> str:
    problems = []
    for problem in error.errors():
        option = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            problems.append(f"there is no option {option!r}")
        else:
            problems.append(f"option {option!r} is {problem['input']!r}: {problem['msg'].lower()}")
    return (
        f'--additional-config: "{SECTION}": {"; ".join(problems)}. '
        f"Valid options are {_valid_options()}."
    )
