# SPDX-License-Identifier: Apache-2.0
"""Workloads whose texts come from recorded files."""

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import ClassVar, TypeVar

from pydantic import BaseModel, FiniteFloat

from vllm_radix.bench.ab.workloads.base import (
    Call,
    FileWorkload,
    Message,
    Session,
    Turn,
    Turns,
    assistant,
    user,
)
from vllm_radix.bench.quantities import Count, Seconds
from vllm_radix.bench.replay.traces import TraceError, checked, json_lines

Line = TypeVar("Line", bound=BaseModel)


class SweCall(BaseModel):
    """One call of a recorded agent: all that it had been told until then."""

    timestamp: FiniteFloat
    input: str
    session_id: str


class GenerativeCall(BaseModel):
    """One call of a simulated person."""

    prompt: str


class Swe(FileWorkload):
    """Each recorded session is held again, with our model's answers in place of the recorded ones.

    The files: one session each, JSONL of ``{"timestamp", "input", "session_id"}``, where an input
    holds the inputs before it. A session ends early where the model's context does.
    """

    name: ClassVar[str] = "swe"
    about: ClassVar[str] = "recorded sessions of a software-engineering agent (--data FOLDER)"
    lengthens: ClassVar[tuple[str, ...]] = ("max_turns", "message_chars", "answer_tokens")
    copies: Count = 4
    """How often each recorded session is held, as if several agents had the same task."""
    max_turns: Count = 12
    message_chars: Count = 8000
    """Messages are cut to so many characters."""
    answer_tokens: Count = 160
    start_within: Seconds = 2.0
    """Sessions begin uniformly within so many seconds."""

    def sessions(self, seed: int) -> list[Session]:
        rng = Random(seed)
        recorded = {path.stem: _tellings(path) for path in _files(self.path)}
        names = [(name, copy) for name in recorded for copy in range(self.copies)]
        rng.shuffle(names)
        return [
            self._session(f"{name[:8]}-{copy}", recorded[name], rng.random() * self.start_within)
            for name, copy in names
        ]

    def _session(self, name: str, tellings: list[str], start: float) -> Session:
        messages = [user(text[: self.message_chars]) for text in tellings[: self.max_turns]]

        def turns() -> Turns:
            history: tuple[Message, ...] = ()
            for message in messages:
                history = (*history, message)
                ((answer,),) = yield Turn((Call(history, self.answer_tokens),))
                history = (*history, assistant(answer))

        return Session(name, start, len(messages), turns)


class Generative(FileWorkload):
    """The prompts of a day of generative agents, dealt out to as many sessions in their order.

    The file: JSONL of ``{"prompt"}``.
    """

    name: ClassVar[str] = "generative"
    about: ClassVar[str] = "many short prompts from few templates (--data FILE)"
    lengthens: ClassVar[tuple[str, ...]] = ("answer_tokens",)
    num_sessions: Count = 32
    limit: Count | None = None
    """Only so many prompts, from the first."""
    answer_tokens: Count = 32

    def sessions(self, seed: int) -> list[Session]:
        prompts = [line.prompt for line in _lines(self.path, GenerativeCall)][: self.limit]
        if not prompts:
            raise TraceError(f"{self.path} holds no prompts.")
        order = list(range(min(self.num_sessions, len(prompts))))
        Random(seed).shuffle(order)
        return [
            self._session(f"person-{number}", prompts[number :: self.num_sessions])
            for number in order
        ]

    def _session(self, name: str, prompts: list[str]) -> Session:
        def turns() -> Turns:
            for prompt in prompts:
                yield Turn((Call(prompt, self.answer_tokens),))

        return Session(name, 0.0, len(prompts), turns)


def _tellings(path: Path) -> list[str]:
    """What a recorded agent was told from call to call, without what it had said itself."""
    calls = sorted(_lines(path, SweCall), key=lambda call: call.timestamp)
    tellings: list[str] = []
    before = ""
    for call in calls:
        if call.input.startswith(before) and len(call.input) > len(before):
            tellings.append(call.input[len(before) :])
            before = call.input
    if not tellings:
        raise TraceError(f"{path} holds no calls.")
    return tellings


def _lines(path: Path, model: type[Line]) -> Iterator[Line]:
    for number, value in json_lines(path):
        yield checked(model, value, f"{path}, line {number}")


def _files(path: Path) -> list[Path]:
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files:
        raise TraceError(f"{path} holds no recorded sessions (*.jsonl).")
    return files
