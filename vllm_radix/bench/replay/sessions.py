# SPDX-License-Identifier: Apache-2.0
"""What is replayed: sessions of turns of calls, as token ids."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Tokens: TypeAlias = npt.NDArray[np.int32]
"""Token ids, shape ``[num_tokens]``."""

NUM_TOKEN_IDS = 2**20
"""Made-up ids of text are below this: so many that two texts hardly ever begin alike by chance."""


def random_tokens(rng: np.random.Generator, num_tokens: int) -> Tokens:
    """A text that shares nothing with any other."""
    return rng.integers(NUM_TOKEN_IDS, size=num_tokens, dtype=np.int32)


class Span(NamedTuple):
    """Where an image stands in a prompt, in tokens. Those tokens stand for its content."""

    start: int
    stop: int


@dataclass(frozen=True, eq=False)
class Call:
    """One request and what the model answers to it: at least one token each."""

    prompt: Tokens
    answer: Tokens
    images: tuple[Span, ...] = ()
    """In the order in which they stand; none overlaps another."""

    @property
    def num_tokens(self) -> int:
        return len(self.prompt) + len(self.answer)

    def text(self) -> Tokens:
        """The prompt and the answer."""
        return np.concatenate((self.prompt, self.answer))


@dataclass(frozen=True, eq=False)
class Turn:
    """Calls that a session sends at once."""

    calls: tuple[Call, ...]
    think_time: float = 0.0
    """Seconds from the last answer of the turn before to these calls."""


@dataclass(frozen=True, eq=False)
class Session:
    """A client that waits for the answers of one turn before it sends the next."""

    name: str
    turns: tuple[Turn, ...]
    start: float = 0.0
    """When the first turn is sent, in seconds from the start of the replay. That turn's think
    time does not count."""

    def calls(self) -> Iterator[Call]:
        for turn in self.turns:
            yield from turn.calls


@dataclass(frozen=True, eq=False)
class Workload:
    """Independent sessions."""

    name: str
    sessions: tuple[Session, ...]
    block_size: int = 16
    """Tokens in a KV block, unless the user says otherwise."""
    num_requests: int = field(init=False)
    max_tokens: int = field(init=False)
    """Tokens of the longest call, prompt and answer."""

    def __post_init__(self) -> None:
        sizes = [call.num_tokens for call in self.calls()]
        object.__setattr__(self, "num_requests", len(sizes))
        object.__setattr__(self, "max_tokens", max(sizes, default=0))

    def calls(self) -> Iterator[Call]:
        for session in self.sessions:
            yield from session.calls()
