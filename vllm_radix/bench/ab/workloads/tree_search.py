# SPDX-License-Identifier: Apache-2.0
"""Searches that ask for several thoughts from each state they kept."""

from random import Random
from typing import Annotated, ClassVar

from pydantic import Field

from vllm_radix.bench.ab.workloads.base import (
    Call,
    Session,
    Turn,
    Turns,
    Workload,
)
from vllm_radix.bench.ab.workloads.prose import THINGS, prose, rules
from vllm_radix.bench.quantities import Count, Seconds


class TreeSearch(Workload):
    """Each session is one problem. Thoughts are sampled, with a seed for each call.

    Which thoughts are kept is drawn beforehand, by their number: a choice by their content would
    make the load depend on the answers.
    """

    name: ClassVar[str] = "tree-search"
    about: ClassVar[str] = "several sampled thoughts (n) from each kept state, several levels deep"
    lengthens: ClassVar[tuple[str, ...]] = (
        "depth",
        "instruction_words",
        "problem_words",
        "thought_tokens",
    )
    problems: Count = 40
    depth: Count = 4
    candidates: Count = 5
    """Thoughts asked for from each kept state."""
    kept: Count = 3
    """States kept at each level."""
    instruction_words: Count = 500
    problem_words: Count = 120
    thought_tokens: Count = 64
    temperature: Annotated[float, Field(gt=0, le=2)] = 0.8
    start_within: Seconds = 2.0
    """Searches begin uniformly within so many seconds."""

    def sessions(self, seed: int) -> list[Session]:
        rng = Random(seed)
        instruction = (
            "A puzzle is solved thought by thought. Each thought is one sentence that says what "
            f"follows from what is known.\nThe rules:\n{rules(rng, self.instruction_words)}\n\n"
        )
        return [
            self._session(f"search-{number}", instruction, rng.getrandbits(32), rng)
            for number in range(self.problems)
        ]

    def _session(self, name: str, instruction: str, seed: int, rng: Random) -> Session:
        question = f"Question: who has {rng.choice(THINGS)} now?\n"
        root = f"{instruction}What is known: {prose(rng, self.problem_words)}\n{question}Thought:"
        start = rng.random() * self.start_within

        def turns() -> Turns:
            draws = Random(seed)
            states = [root]
            for _ in range(self.depth):
                calls = tuple(
                    Call(
                        state,
                        self.thought_tokens,
                        n=self.candidates,
                        temperature=self.temperature,
                        seed=draws.getrandbits(31),
                    )
                    for state in states
                )
                answers = yield Turn(calls)
                thoughts = [
                    f"{state}{thought.rstrip()}\nThought:"
                    for state, of_state in zip(states, answers, strict=True)
                    for thought in of_state
                ]
                numbers = draws.sample(range(len(thoughts)), min(self.kept, len(thoughts)))
                states = [thoughts[number] for number in sorted(numbers)]

        return Session(name, start, self._num_calls(), turns)

    def _num_calls(self) -> int:
        count, states = 0, 1
        for _ in range(self.depth):
            count += states
            states = min(self.kept, states * self.candidates)
        return count
