# SPDX-License-Identifier: Apache-2.0
"""Generated workloads. The fields of each class are its parameters.

The same seed gives the same workload. Token counts of the form ``(low, high)`` are drawn uniformly
from that range, both ends included.
"""

from abc import abstractmethod
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vllm_radix.bench.quantities import Count, Range, Seconds
from vllm_radix.bench.replay.names import parameter_error
from vllm_radix.bench.replay.sessions import (
    Call,
    Session,
    Span,
    Tokens,
    Turn,
    Workload,
    random_tokens,
)

Rate = Annotated[float, Field(ge=1e-6, allow_inf_nan=False)]


class Generator(BaseModel):
    """Makes a workload from its parameters and a seed."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: ClassVar[str]

    def generate(self, seed: int) -> Workload:
        """The workload of a seed."""
        sessions = self._sessions(np.random.default_rng(seed))
        return Workload(self.name, tuple(sessions))

    @abstractmethod
    def _sessions(self, rng: np.random.Generator) -> list[Session]: ...


class Batch(Generator):
    """Requests all at once, each over one of a few prefixes."""

    name = "batch"
    requests: Count = 1000
    prefixes: Count = 50
    prefix_tokens: Count = 2000
    suffix_tokens: Count = 100
    answer_tokens: Count = 16

    def _sessions(self, rng: np.random.Generator) -> list[Session]:
        prefixes = [random_tokens(rng, self.prefix_tokens) for _ in range(self.prefixes)]
        order = rng.integers(self.prefixes, size=self.requests)
        return [
            _single(
                f"request-{number}",
                np.concatenate((prefixes[which], random_tokens(rng, self.suffix_tokens))),
                random_tokens(rng, self.answer_tokens),
            )
            for number, which in enumerate(order)
        ]


class Agents(Generator):
    """Dialogues under a few system prompts, with time to think between the turns."""

    name = "agents"
    sessions: Count = 100
    turns: Count = 5
    system_prompts: Count = 20
    system_tokens: Count = 3000
    user_tokens: Range = (250, 750)
    answer_tokens: Range = (100, 300)
    think_time: Seconds = 2.0
    """Mean of an exponential distribution, in seconds."""
    start_within: Seconds = 1.0
    """Sessions start uniformly within so many seconds."""

    def _sessions(self, rng: np.random.Generator) -> list[Session]:
        systems = [random_tokens(rng, self.system_tokens) for _ in range(self.system_prompts)]
        sessions = []
        for number, which in enumerate(rng.permutation(self.sessions) % self.system_prompts):
            context, turns = systems[which], []
            for _ in range(self.turns):
                prompt = np.concatenate((context, _some_tokens(rng, self.user_tokens)))
                call = Call(prompt, _some_tokens(rng, self.answer_tokens))
                turns.append(Turn((call,), rng.exponential(self.think_time)))
                context = call.text()
            start = rng.uniform(0, self.start_within)
            sessions.append(Session(f"agent-{number}", tuple(turns), start))
        return sessions


class TreeSearch(Generator):
    """Searches that ask for several candidates from each kept state, then keep some of them."""

    name = "tree-search"
    problems: Count = 40
    depth: Count = 4
    candidates: Count = 5
    """Asked for from each kept state."""
    kept: Count = 3
    """States kept at each depth."""
    instruction_tokens: Count = 800
    problem_tokens: Count = 200
    thought_tokens: Range = (40, 120)
    start_within: Seconds = 1.0
    """Searches start uniformly within so many seconds."""

    def _sessions(self, rng: np.random.Generator) -> list[Session]:
        instruction = random_tokens(rng, self.instruction_tokens)
        sessions = []
        for number in range(self.problems):
            problem = random_tokens(rng, self.problem_tokens)
            states, turns = [np.concatenate((instruction, problem))], []
            for _ in range(self.depth):
                calls = [
                    Call(state, _some_tokens(rng, self.thought_tokens))
                    for state in states
                    for _ in range(self.candidates)
                ]
                turns.append(Turn(tuple(calls)))
                kept = rng.choice(len(calls), min(self.kept, len(calls)), replace=False)
                states = [calls[which].text() for which in sorted(kept)]
            start = rng.uniform(0, self.start_within)
            sessions.append(Session(f"search-{number}", tuple(turns), start))
        return sessions


class Rag(Generator):
    """Questions over retrieved documents; a few documents are retrieved often."""

    name = "rag"
    requests: Count = 1000
    documents: Count = 200
    documents_per_request: Count = 4
    document_tokens: Range = (300, 900)
    popularity: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] = 1.0
    """The n-th document is retrieved in proportion to n to the power of minus this."""
    instruction_tokens: Count = 150
    question_tokens: Range = (20, 60)
    answer_tokens: Range = (60, 200)
    rate: Rate = 8.0
    """Requests per second, at random times."""

    def _sessions(self, rng: np.random.Generator) -> list[Session]:
        instruction = random_tokens(rng, self.instruction_tokens)
        documents = [_some_tokens(rng, self.document_tokens) for _ in range(self.documents)]
        weights = np.arange(1, self.documents + 1) ** -self.popularity
        starts = rng.exponential(1 / self.rate, self.requests).cumsum()
        sessions = []
        for number, start in enumerate(starts):
            retrieved = rng.choice(
                self.documents, self.documents_per_request, replace=False, p=weights / weights.sum()
            )
            parts = [instruction, *(documents[which] for which in retrieved)]
            prompt = np.concatenate((*parts, _some_tokens(rng, self.question_tokens)))
            answer = _some_tokens(rng, self.answer_tokens)
            sessions.append(_single(f"question-{number}", prompt, answer, start))
        return sessions


class Screens(Generator):
    """Agents that open a few shared screenshots, one a turn, and keep them in the conversation."""

    name = "screens"
    sessions: Count = 60
    turns: Count = 6
    tasks: Count = 6
    """Sequences of screens that sessions share."""
    screen_tokens: Range = (400, 800)
    """Positions that a screen takes."""
    system_tokens: Count = 500
    question_tokens: Range = (20, 60)
    answer_tokens: Range = (30, 100)
    think_time: Seconds = 2.0
    """Mean of an exponential distribution, in seconds."""
    start_within: Seconds = 1.0
    """Sessions start uniformly within so many seconds."""

    def _sessions(self, rng: np.random.Generator) -> list[Session]:
        system = random_tokens(rng, self.system_tokens)
        tasks = [
            [_some_tokens(rng, self.screen_tokens) for _ in range(self.turns)]
            for _ in range(self.tasks)
        ]
        sessions = []
        for number, which in enumerate(rng.permutation(self.sessions) % self.tasks):
            context, images, turns = system, [], []
            for screen in tasks[which]:
                images.append(Span(len(context), len(context) + len(screen)))
                prompt = np.concatenate((context, screen, _some_tokens(rng, self.question_tokens)))
                call = Call(prompt, _some_tokens(rng, self.answer_tokens), tuple(images))
                turns.append(Turn((call,), rng.exponential(self.think_time)))
                context = call.text()
            start = rng.uniform(0, self.start_within)
            sessions.append(Session(f"viewer-{number}", tuple(turns), start))
        return sessions


class Unique(Generator):
    """Prompts that share nothing, arriving at random times, slower than they can be served."""

    name = "unique"
    requests: Count = 300
    prompt_tokens: Range = (1000, 3000)
    answer_tokens: Range = (50, 150)
    rate: Rate = 4.0
    """Requests per second, at random times."""

    def _sessions(self, rng: np.random.Generator) -> list[Session]:
        starts = rng.exponential(1 / self.rate, self.requests).cumsum()
        return [
            _single(
                f"request-{number}",
                _some_tokens(rng, self.prompt_tokens),
                _some_tokens(rng, self.answer_tokens),
                start,
            )
            for number, start in enumerate(starts)
        ]


GENERATORS: dict[str, type[Generator]] = {
    generator.name: generator for generator in (Batch, Agents, TreeSearch, Rag, Screens, Unique)
}


def make_generator(name: str, parameters: dict[str, Any]) -> Generator:
    """The generator called ``name``, with the parameters that differ from its defaults.

    Raises:
        ValueError: a parameter is unknown or ill-typed, in one sentence.
    """
    generator = GENERATORS[name]
    try:
        return generator.model_validate(parameters)
    except ValidationError as error:
        raise parameter_error(name, error, parameters, generator.model_fields) from None


def _single(name: str, prompt: Tokens, answer: Tokens, start: float = 0.0) -> Session:
    return Session(name, (Turn((Call(prompt, answer),)),), float(start))


def _some_tokens(rng: np.random.Generator, count: Range) -> Tokens:
    low, high = count
    return random_tokens(rng, int(rng.integers(low, high, endpoint=True)))
