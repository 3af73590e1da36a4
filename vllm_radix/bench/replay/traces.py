# SPDX-License-Identifier: Apache-2.0
"""Recorded workloads: which format a file has, and what the formats have in common."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError

from vllm_radix.bench.problems import first_problem
from vllm_radix.bench.replay.sessions import Tokens, Workload, random_tokens

FORMATS = (
    "Mooncake's JSONL, a session file of kv-cache-tester or a folder of them, "
    'JSONL with "prompt" and, where wanted, "session", "time" (in seconds) and "answer", '
    "or a log of Tree of Thoughts"
)

# What formats of chat logs call the dialogue.
_CHAT = ("messages", "conversations")

Model = TypeVar("Model", bound=BaseModel)


class TraceError(ValueError):
    """A file that cannot be replayed, in one sentence that names the place."""


@dataclass(frozen=True)
class TraceOptions:
    """What to take from a trace, and how fast."""

    limit: int | None = None
    """Only so many lines, session files or problems, from the first."""
    max_turns: int | None = None
    """Only so many requests of each session file."""
    max_answer: int | None = None
    """Cut answers to so many tokens."""
    max_think: float | None = None
    """Cut think times to so many seconds."""
    speed: float = 1.0
    """Divide recorded times by this."""
    stagger: float = 0.5
    """Seconds between the starts of session files or problems, which record none."""
    tokenizer: str | None = None
    """Of formats that hold text: a name or a folder for ``AutoTokenizer``."""
    image_tokens: int | None = None
    """Positions of an image, where a format that holds images does not tell them."""

    def think_time(self, recorded: float) -> float:
        """A recorded think time, as it is replayed."""
        seconds = max(recorded, 0.0) / self.speed
        return seconds if self.max_think is None else min(seconds, self.max_think)

    def answer_length(self, recorded: int) -> int:
        """Tokens of an answer, as it is replayed."""
        cut = recorded if self.max_answer is None else min(recorded, self.max_answer)
        return max(cut, 1)


def read_trace(path: Path, options: TraceOptions) -> Workload:
    """Read a file or folder in any of the known formats.

    Raises:
        TraceError: it has none of them, or something in it is malformed.
    """
    # These import from here.
    from vllm_radix.bench.replay import block_traces, text_traces

    if path.is_dir():
        files = sorted(path.glob("*.json"))
        if not files:
            raise TraceError(f"{path} holds no session files (*.json).")
        return block_traces.read_sessions(files, options)
    if path.suffix == ".json":
        content = load_json(path)
        _refuse_chat(content[0] if isinstance(content, list) and content else content, str(path))
        if isinstance(content, list):
            return text_traces.read_tree_of_thoughts(path, options)
        return block_traces.read_sessions([path], options)
    number, first = next(json_lines(path), (0, {}))
    if not number:
        raise TraceError(f"{path} is empty.")
    if "hash_ids" in first:
        return block_traces.read_mooncake(path, options)
    if "prompt" in first:
        return text_traces.read_prompts(path, options)
    _refuse_chat(first, f"{path}, line {number}")
    raise TraceError(f"{path}, line {number}: not a known format: give {FORMATS}.")


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSONL file with the numbers of their lines; blank lines are skipped.

    Raises:
        TraceError: naming the first line that is no JSON object.
    """
    with _opened(path) as lines:
        for number, text in enumerate(lines, 1):
            line = text.rstrip()
            if not line:
                continue
            value = _parsed(line, f"{path}, line {number}")
            if not isinstance(value, dict):
                raise TraceError(f"{path}, line {number}: not a JSON object.")
            yield number, value


def load_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        TraceError: it has none.
    """
    with _opened(path) as file:
        text = file.read()
    if not text.strip():
        raise TraceError(f"{path} is empty.")
    return _parsed(text, str(path))


def checked(model: type[Model], value: Any, place: str) -> Model:
    """``value`` as an instance of ``model``.

    Raises:
        TraceError: naming the place and the first thing that is wrong there.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise TraceError(f"{place}: {first_problem(error, value)}.") from None


def continuation(following: Tokens, start: int, length: int, rng: np.random.Generator) -> Tokens:
    """``length`` tokens of ``following`` from ``start``; made-up ones for what it lacks."""
    known = following[start : start + length]
    return np.concatenate((known, random_tokens(rng, length - len(known))))


def _parsed(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}" if "\n" in text else ""
        where = where or f"column {error.colno}"
        raise TraceError(f"{place}: no JSON ({error.msg} at {where}).") from None
    except (ValueError, RecursionError) as error:
        # A number of thousands of digits, or thousands of brackets.
        raise TraceError(f"{place}: no JSON that can be read ({error}).") from None


def _refuse_chat(value: Any, place: str) -> None:
    if isinstance(value, dict) and any(key in value for key in _CHAT):
        raise TraceError(
            f"{place}: a chat log has to be rendered to prompts first: apply the model's chat "
            'template to the messages before each answer, and give lines of {"prompt": TEXT}.'
        )


def _opened(path: Path) -> Any:
    try:
        return path.open(encoding="utf-8", errors="replace")
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}.") from None
