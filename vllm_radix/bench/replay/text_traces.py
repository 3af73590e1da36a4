# SPDX-License-Identifier: Apache-2.0
"""Traces that hold text: prompts in JSONL, and logs of Tree of Thoughts."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic import BaseModel, Field, RootModel

from vllm_radix.bench.quantities import Seconds
from vllm_radix.bench.replay.prompts import Prompt, PromptReader
from vllm_radix.bench.replay.sessions import (
    Call,
    Session,
    Span,
    Tokens,
    Turn,
    Workload,
    random_tokens,
)
from vllm_radix.bench.replay.traces import (
    TraceError,
    TraceOptions,
    checked,
    continuation,
    json_lines,
    load_json,
)

DEFAULT_ANSWER = 16
"""Tokens of an answer that the trace does not tell."""

# The logs hold states, not the prompts around them.
_PROPOSE = (
    "Use the numbers you are given and basic arithmetic operations (+ - * /) to obtain 24. Each "
    "step takes two of the remaining numbers and leaves their result with the others. Write one "
    "possible next step, in a line of its own, with the numbers that are left after it.\n"
)
_EVALUATE = (
    "Somebody uses the numbers they were given and basic arithmetic operations (+ - * /) to "
    "obtain 24. Judge whether the numbers that are left can still reach 24: answer with sure, "
    "likely or impossible.\n"
)


class PromptLine(BaseModel):
    """One request."""

    prompt: Prompt
    session: str | int | None = None
    time: Seconds | None = None
    answer: str | None = None


class _Request(NamedTuple):
    """A line, its prompt as tokens, and where the images are in them."""

    line: PromptLine
    prompt: Tokens
    images: tuple[Span, ...]


class Step(BaseModel):
    """One depth of a search: the states it started from, and the candidates from all of them."""

    x: str
    ys: list[str]
    new_ys: list[str] = Field(min_length=1)


class Problem(BaseModel):
    """One search."""

    steps: list[Step] = Field(min_length=1)


class Log(RootModel[list[Problem]]):
    """The log file of a run."""


def read_prompts(path: Path, options: TraceOptions) -> Workload:
    """Lines of ``{"prompt", "session", "time", "answer"}``, all but the first optional.

    A prompt is a string, or a list of content parts, some of them images.

    Lines of one session are its turns, in the order of the file. The time between two of them is
    the think time, since nothing tells how much of it the answer took. A line of no session is
    sent at its time. Where a turn's prompt begins with the prompt before it, the answer before it
    is what follows there up to an image, as many tokens as ``answer`` has or else 16.

    Raises:
        TraceError: naming the malformed line.
    """
    reader = _reader(path, options)
    rng = np.random.default_rng(0)
    sessions: dict[tuple[str, str], list[_Request]] = {}
    for count, (number, value) in enumerate(json_lines(path)):
        if count == options.limit:
            break
        place = f"{path}, line {number}"
        line = checked(PromptLine, value, place)
        prompt, images = reader.prompt(line.prompt, place)
        key = ("line", str(number)) if line.session is None else ("session", str(line.session))
        sessions.setdefault(key, []).append(_Request(line, prompt, images))
    first = min(
        (line.time for lines in sessions.values() for line, *_ in lines if line.time is not None),
        default=0.0,
    )
    made = []
    for (kind, name), lines in sessions.items():
        start = lines[0].line.time
        turns = _turns(lines, reader, rng, options)
        seconds = 0.0 if start is None else (start - first) / options.speed
        made.append(Session(f"{kind}-{name}", turns, seconds))
    return Workload(path.stem, tuple(made))


def read_tree_of_thoughts(path: Path, options: TraceOptions) -> Workload:
    """The search logs that Tree of Thoughts writes for the Game of 24, one session per problem.

    At each depth, every candidate is one call for the next step from its state, all at once; then
    every candidate is one call for a judgement.

    Raises:
        TraceError: naming the malformed problem.
    """
    encode = _reader(path, options).text
    rng = np.random.default_rng(0)
    log = checked(Log, load_json(path), str(path))
    sessions = []
    for number, problem in enumerate(log.root[: options.limit]):
        turns: list[Turn] = []
        for step in problem.steps:
            proposals, judgements = [], []
            for candidate in step.new_ys:
                # The longest, as the empty state is a prefix of everything.
                state = max((y for y in step.ys if candidate.startswith(y)), key=len, default="")
                head = f"Numbers: {step.x}\n"
                thought = encode(candidate[len(state) :], begins=False)
                proposals.append(
                    Call(
                        encode(_PROPOSE + head + state),
                        continuation(thought, 0, options.answer_length(len(thought)), rng),
                    )
                )
                judgements.append(
                    Call(
                        encode(_EVALUATE + head + candidate),
                        random_tokens(rng, options.answer_length(1)),
                    )
                )
            turns += [Turn(tuple(proposals)), Turn(tuple(judgements))]
        sessions.append(Session(f"problem-{number}", tuple(turns), number * options.stagger))
    return Workload(path.stem, tuple(sessions))


def _turns(
    lines: list[_Request],
    reader: PromptReader,
    rng: np.random.Generator,
    options: TraceOptions,
) -> tuple[Turn, ...]:
    turns = []
    before: float | None = None
    for position, (line, prompt, images) in enumerate(lines):
        answer = (
            reader.text(line.answer, begins=False)
            if line.answer
            else random_tokens(rng, DEFAULT_ANSWER)
        )
        if position + 1 < len(lines):
            following = lines[position + 1]
            if np.array_equal(following.prompt[: len(prompt)], prompt):
                # A model answers no images, so the next one is the user's.
                text = following.prompt[: _next_image(following, len(prompt))]
                answer = continuation(text, len(prompt), len(answer), rng)
        answer = continuation(answer, 0, options.answer_length(len(answer)), rng)
        gap = 0.0 if line.time is None or before is None else line.time - before
        turns.append(Turn((Call(prompt, answer, images),), options.think_time(gap)))
        before = line.time
    return tuple(turns)


def _next_image(request: _Request, position: int) -> int:
    """Where the first image at or after ``position`` begins, else the end of the prompt."""
    starts = (image.start for image in request.images if image.start >= position)
    return next(starts, len(request.prompt))


def _reader(path: Path, options: TraceOptions) -> PromptReader:
    if options.tokenizer is None:
        raise TraceError(f"{path} holds text: name the model's tokenizer with --tokenizer.")
    return PromptReader(options.tokenizer, options.image_tokens)
