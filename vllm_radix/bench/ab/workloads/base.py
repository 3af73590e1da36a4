# SPDX-License-Identifier: Apache-2.0
"""What a workload is: sessions that wait for the answers of one turn before they send the next."""

from abc import abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, ClassVar, TypeAlias

from pydantic import BaseModel, ConfigDict

from vllm_radix.bench.quantities import Range

Message: TypeAlias = dict[str, Any]
"""A chat message as the OpenAI API has it; ``content`` may be a list of parts."""


@dataclass(frozen=True)
class Call:
    """One request."""

    content: str | tuple[Message, ...]
    """A text goes to ``/v1/completions``, messages go to ``/v1/chat/completions``."""
    max_tokens: int
    n: int = 1
    """How many answers are asked for."""
    temperature: float = 0.0
    seed: int | None = None
    """Of the sampling, where the temperature is not zero."""


@dataclass(frozen=True)
class Turn:
    """Calls that a session sends at once."""

    calls: tuple[Call, ...]
    think_time: float = 0.0
    """Seconds from the last answer of the turn before to these calls."""


Texts: TypeAlias = Sequence[Sequence[str]]
"""What was answered at a turn: for each call, ``n`` texts."""
Turns: TypeAlias = Generator[Turn, Texts, None]
"""Yields a turn, is sent its answers, yields the next."""


@dataclass(frozen=True)
class Session:
    """A client that holds one conversation, or asks one question after another."""

    name: str
    start: float
    """When it begins, in seconds from the start of the run."""
    num_calls: int
    """In all its turns."""
    turns: Callable[[], Turns]
    """Begins the session anew."""


class Workload(BaseModel):
    """Makes sessions from a seed. The fields of a subclass are its parameters.

    The same seed and the same answers make the same requests, whatever their timing.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
    name: ClassVar[str]
    about: ClassVar[str]
    """A sentence for people who choose between workloads."""
    images: ClassVar[bool] = False
    """Whether it shows images."""
    lengthens: ClassVar[tuple[str, ...]]
    """The parameters that make its longest prompts and their answers longer."""

    @abstractmethod
    def sessions(self, seed: int) -> list[Session]:
        """The sessions of a seed.

        Raises:
            ValueError: a file that they come from is missing or malformed, in one sentence.
        """

    @classmethod
    def how_to_fit(cls) -> str:
        """What to do if prompts do not fit into the model's context."""
        *others, last = cls.lengthens
        listed = f"{', '.join(others)} or {last}" if others else last
        return f"raise --max-model-len, or lower {listed} of --workload {cls.name}"


class FileWorkload(Workload):
    """A workload whose texts come from a file."""

    path: Path
    """Given by ``--data``."""


def draw(rng: Random, limits: Range) -> int:
    """A number within ``limits``."""
    return rng.randint(*limits)


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def system(text: str) -> Message:
    return {"role": "system", "content": text}


def think_times(rng: Random, mean: float, num_turns: int) -> list[float]:
    """Seconds before each turn, exponentially distributed; none before the first."""
    return [0.0] + [rng.expovariate(1 / mean) if mean else 0.0 for _ in range(num_turns - 1)]


def dialogue(
    first: Message, messages: Sequence[Message], waits: Sequence[float], answer_tokens: int
) -> Callable[[], Turns]:
    """A conversation that keeps all that was said.

    Args:
        first: what stands above it, such as a system prompt.
        messages: what is said at each turn.
        waits: seconds before each turn.
        answer_tokens: at most, at each turn.
    """

    def turns() -> Turns:
        history: tuple[Message, ...] = (first,)
        for message, wait in zip(messages, waits, strict=True):
            history = (*history, message)
            ((answer,),) = yield Turn((Call(history, answer_tokens),), wait)
            history = (*history, assistant(answer))

    return turns
