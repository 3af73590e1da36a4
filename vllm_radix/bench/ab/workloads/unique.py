# SPDX-License-Identifier: Apache-2.0
"""Prompts that share nothing: what a prefix cache costs where it has nothing to give."""

from random import Random
from typing import ClassVar

from vllm_radix.bench.ab.workloads.base import (
    Call,
    Session,
    Turn,
    Turns,
    Workload,
    draw,
)
from vllm_radix.bench.ab.workloads.prose import prose
from vllm_radix.bench.quantities import Count, Range, Seconds


class Unique(Workload):
    """Each session asks one request after another, all of them about different texts."""

    name: ClassVar[str] = "unique"
    about: ClassVar[str] = "prompts that share nothing"
    lengthens: ClassVar[tuple[str, ...]] = ("prompt_words", "answer_tokens")
    num_sessions: Count = 50
    requests: Count = 4
    """Of a session, one after the other."""
    prompt_words: Range = (500, 1500)
    answer_tokens: Count = 96
    start_within: Seconds = 2.0
    """Sessions begin uniformly within so many seconds."""

    def sessions(self, seed: int) -> list[Session]:
        rng = Random(seed)
        return [self._session(f"session-{number}", rng) for number in range(self.num_sessions)]

    def _session(self, name: str, rng: Random) -> Session:
        # Plain texts: a chat template would begin all prompts alike.
        texts = [prose(rng, draw(rng, self.prompt_words)) for _ in range(self.requests)]
        start = rng.random() * self.start_within

        def turns() -> Turns:
            for text in texts:
                yield Turn((Call(f"{text}\nThe day after,", self.answer_tokens),))

        return Session(name, start, self.requests, turns)
