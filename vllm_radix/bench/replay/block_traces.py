# SPDX-License-Identifier: Apache-2.0
"""Traces that hold no text, only ids of blocks of it: Mooncake's and kv-cache-tester's.

Each id stands for one made-up text, so requests share what they shared when they were recorded.
"""

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, Field

from vllm_radix.bench.quantities import Milliseconds, NumTokens, Seconds, SomeTokens
from vllm_radix.bench.replay.sessions import (
    Call,
    Session,
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

MOONCAKE_BLOCK_SIZE = 512


class MooncakeLine(BaseModel):
    """One request; the last of its blocks may be partly filled."""

    timestamp: Milliseconds
    input_length: SomeTokens
    output_length: NumTokens
    hash_ids: list[int]


class SessionRequest(BaseModel):
    """One request of a session; tokens after its last full block have no id."""

    type: Literal["s", "n"]
    t: Seconds
    """From the session's start."""
    num_input: SomeTokens = Field(alias="in")
    num_output: NumTokens = Field(alias="out")
    hash_ids: list[int]
    api_time: Seconds | None = None
    """That the recorded answer took."""
    think_time: Seconds | None = None
    """Between the previous answer and this request."""


class SubAgent(BaseModel):
    """Requests that a session waits for, in a context of their own."""

    type: Literal["subagent"]
    requests: list[SessionRequest] = []


class SessionFile(BaseModel):
    """One session as kv-cache-tester records it."""

    id: str
    block_size: SomeTokens
    hash_id_scope: str = "local"
    requests: list[Annotated[SessionRequest | SubAgent, Field(discriminator="type")]]


class BlockTexts:
    """The made-up text of each block id, the same whenever it is asked for."""

    def __init__(self, block_size: int, rng: np.random.Generator) -> None:
        self._block_size = block_size
        self._rng = rng
        self._texts: dict[Hashable, Tokens] = {}

    def text(self, namespace: Hashable, ids: Sequence[int]) -> Tokens:
        """The blocks ``ids``, one after the other. Ids of other namespaces are other blocks."""
        blocks = [np.empty(0, np.int32)]
        for block in ids:
            text = self._texts.get((namespace, block))
            if text is None:
                text = random_tokens(self._rng, self._block_size)
                self._texts[namespace, block] = text
            blocks.append(text)
        return np.concatenate(blocks)


def read_mooncake(path: Path, options: TraceOptions) -> Workload:
    """An open-loop trace of ``{"timestamp", "input_length", "output_length", "hash_ids"}`` lines.

    Each line is a session of its own: the trace does not say which lines belong together.

    Raises:
        TraceError: naming the malformed line.
    """
    rng = np.random.default_rng(0)
    texts = BlockTexts(MOONCAKE_BLOCK_SIZE, rng)
    sessions: list[Session] = []
    for number, value in json_lines(path):
        if len(sessions) == options.limit:
            break
        line = checked(MooncakeLine, value, f"{path}, line {number}")
        _check_blocks(
            f"{path}, line {number}", line.input_length, line.hash_ids, MOONCAKE_BLOCK_SIZE, 0
        )
        call = Call(
            texts.text(None, line.hash_ids)[: line.input_length],
            random_tokens(rng, options.answer_length(line.output_length)),
        )
        start = line.timestamp / 1000 / options.speed
        sessions.append(Session(f"line-{number}", (Turn((call,)),), start))
    return Workload(path.stem, tuple(sessions), MOONCAKE_BLOCK_SIZE)


def read_sessions(paths: Sequence[Path], options: TraceOptions) -> Workload:
    """Closed-loop sessions, one per file; they start ``options.stagger`` seconds apart.

    Where a request's prompt begins with all full blocks of the prompt before it, it is taken to
    contain that prompt's last tokens and its answer. Requests of sub-agents that stand next to
    each other run in step: the first of each, then the second of each.

    Raises:
        TraceError: naming the malformed file.
    """
    rng = np.random.default_rng(0)
    files = [
        checked(SessionFile, load_json(path), str(path)) for path in list(paths)[: options.limit]
    ]
    block_sizes = {file.block_size for file in files}
    if len(block_sizes) > 1:
        raise TraceError(
            f"{paths[0].parent}: the sessions have blocks of {sorted(block_sizes)} tokens: "
            "replay those of one size."
        )
    (block_size,) = block_sizes
    texts = BlockTexts(block_size, rng)
    sessions = []
    for number, (path, file) in enumerate(zip(paths, files, strict=False)):
        turns = _SessionReader(file, str(path), texts, rng, options).turns()
        if turns:
            sessions.append(Session(f"{number}-{file.id}", turns, number * options.stagger))
    name = paths[0].stem if len(paths) == 1 else paths[0].parent.name
    return Workload(name, tuple(sessions), block_size)


class _SessionReader:
    """Makes the turns of one session file."""

    def __init__(
        self,
        file: SessionFile,
        place: str,
        texts: BlockTexts,
        rng: np.random.Generator,
        options: TraceOptions,
    ) -> None:
        self._file = file
        self._place = place
        self._texts = texts
        self._rng = rng
        self._options = options

    def turns(self) -> tuple[Turn, ...]:
        entries = self._file.requests[: self._options.max_turns]
        own = [entry for entry in entries if isinstance(entry, SessionRequest)]
        own_turns = iter(self._chain(own, "session"))
        turns: list[Turn] = []
        agents: list[list[Turn]] = []
        for number, entry in enumerate(entries):
            if isinstance(entry, SubAgent):
                agents.append(self._chain(entry.requests, f"agent-{number}"))
                continue
            turns += _in_step(agents)
            agents = []
            turns.append(next(own_turns))
        return (*turns, *_in_step(agents))

    def _chain(self, requests: Sequence[SessionRequest], context: str) -> list[Turn]:
        """Turns of requests that follow each other in one context."""
        # Only ids of global scope mean the same text elsewhere.
        namespace: Any = None
        if self._file.hash_id_scope != "global":
            namespace = (self._place, context)
        turns: list[Turn] = []
        following: Tokens | None = None
        following_ids: list[int] = []
        # Backwards, as a prompt tells how the one before it ended, and its answer.
        for position in range(len(requests) - 1, -1, -1):
            request = requests[position]
            place = f"{self._place}, {context}, request {position + 1}"
            block_size = self._file.block_size
            _check_blocks(place, request.num_input, request.hash_ids, block_size, block_size - 1)
            blocks = self._texts.text(namespace, request.hash_ids)[: request.num_input]
            answer_length = self._options.answer_length(request.num_output)
            num_blocks = len(request.hash_ids)
            is_continued = (
                following is not None
                and len(following) > request.num_input
                and following_ids[:num_blocks] == request.hash_ids
            )
            source = following if is_continued and following is not None else blocks
            num_unknown = request.num_input - len(blocks)
            tail = continuation(source, len(blocks), num_unknown, self._rng)
            prompt = np.concatenate((blocks, tail))
            answer = continuation(
                source if is_continued else prompt, len(prompt), answer_length, self._rng
            )
            turns.append(Turn((Call(prompt, answer),), self._think_time(requests, position)))
            following, following_ids = prompt, request.hash_ids
        return turns[::-1]

    def _think_time(self, requests: Sequence[SessionRequest], position: int) -> float:
        request = requests[position]
        recorded = request.think_time
        if recorded is None and position:
            before = requests[position - 1]
            recorded = request.t - before.t - (before.api_time or 0.0)
        return self._options.think_time(recorded or 0.0)


def _in_step(agents: list[list[Turn]]) -> list[Turn]:
    turns = []
    for number in range(max(map(len, agents), default=0)):
        together = [turns_of[number] for turns_of in agents if number < len(turns_of)]
        calls = tuple(call for turn in together for call in turn.calls)
        turns.append(Turn(calls, max(turn.think_time for turn in together)))
    return turns


def _check_blocks(
    place: str, num_tokens: int, ids: Sequence[int], block_size: int, max_uncovered: int
) -> None:
    num_uncovered = num_tokens - len(ids) * block_size
    if not -block_size < num_uncovered <= max_uncovered:
        raise TraceError(
            f"{place}: {len(ids)} blocks of {block_size} tokens do not make {num_tokens} tokens."
        )
