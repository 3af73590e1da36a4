# SPDX-License-Identifier: Apache-2.0
"""Streaming input: one request whose prompt arrives in parts, with an answer after each."""

import copy

import pytest
from vllm.sampling_params import RequestOutputKind

from .conftest import EngineFactory
from .engines import Ask, Engine, Kind, assert_same
from .prompts import reusable, tokens

pytestmark = pytest.mark.engine

PARTS = [tokens(f"part {i}", length) for i, length in enumerate([50, 1, 40, 17, 64])]


class Session:
    """A streaming-input request, fed by hand as vLLM's asynchronous front end feeds it."""

    def __init__(self, engine: Engine, name: str) -> None:
        self.engine = engine
        self.name = name
        self.internal_id: str | None = None
        self.tokens: list[int] = []
        self.logprobs: list[float] = []

    def feed(self, part: tuple[int, ...], max_tokens: int, last: bool = False) -> None:
        """Queue a part of the prompt. `last` ends the session; the part is then ignored."""
        llm = self.engine.llm
        params = Ask(part, max_tokens).params()
        params.output_kind = RequestOutputKind.DELTA
        request = llm.input_processor.process_inputs(
            self.internal_id or self.name,
            {"prompt_token_ids": list(part)},
            params,
            supported_tasks=llm.get_supported_tasks(),
            resumable=not last,
        )
        if self.internal_id is None:
            llm.input_processor.assign_request_id(request)
            self.internal_id = request.request_id
        request.external_req_id = self.name
        llm.output_processor.add_request(request, None, None, 0)
        # Both sides extend their prompt in place; only a request sent to another process is a copy.
        llm.engine_core.add_request(copy.deepcopy(request))

    def take(self, count: int) -> None:
        """Step the engine until the session has `count` more tokens."""
        goal = len(self.tokens) + count
        for _ in range(200):
            if len(self.tokens) >= goal:
                return
            for output in self.engine.step():
                if output.request_id == self.name:
                    completion = output.outputs[0]
                    self.tokens += completion.token_ids
                    self.logprobs += [
                        d[t].logprob
                        for t, d in zip(completion.token_ids, completion.logprobs, strict=True)
                    ]
        raise AssertionError("the session is stuck")


def _talk(engine: Engine, ahead: bool) -> tuple[list[int], list[float]]:
    """All of `PARTS`, each answered; `ahead` queues the next part before the answer is out."""
    session = Session(engine, f"session {ahead}")
    for i, part in enumerate(PARTS):
        if not (ahead and i):
            session.feed(part, max_tokens=6)
        if ahead and i + 1 < len(PARTS):
            session.feed(PARTS[i + 1], max_tokens=6)
        session.take(6)
    session.feed((0,), 1, last=True)
    engine.drain()
    return session.tokens, session.logprobs


@pytest.mark.parametrize("ahead", [False, True])
def test_answers(engine: EngineFactory, ours: Kind, ahead: bool) -> None:
    """A session gives the same tokens as with the cache off, next to other requests."""
    others = [Ask(PARTS[0] + tokens(i, 20), max_tokens=40) for i in range(3)]
    expected_tokens, expected_logprobs = _talk(engine("off"), ahead)
    expected_others = engine("off").run(others)

    radix = engine(ours)
    ids = [radix.add(ask) for ask in others]
    got_tokens, got_logprobs = _talk(radix, ahead)
    radix.drain()
    assert got_tokens == expected_tokens
    assert got_logprobs == pytest.approx(expected_logprobs, abs=1e-4)
    assert_same(expected_others, [radix.answers[i] for i in ids])


def test_a_session_is_cached(engine: EngineFactory, ours: Kind) -> None:
    """What a session has computed serves a later prompt: each part and the answer it kept.

    vLLM drops the last token of every answer when the next part arrives.
    """
    radix = engine(ours)
    got, _ = _talk(radix, ahead=False)
    prompt: tuple[int, ...] = ()
    for i, part in enumerate(PARTS):
        prompt += part + tuple(got[6 * i : 6 * i + 5])
    expected = engine("off").run([Ask((*prompt, 9))])
    answer = radix.run([Ask((*prompt, 9))])
    assert_same(expected, answer)
    assert answer[0].cached == reusable(ours, len(prompt), 32)


def test_abort_between_parts(engine: EngineFactory, ours: Kind) -> None:
    """A session aborted while it waits for input, and one aborted in its answer, leave nothing."""
    radix = engine(ours)
    for taken in (6, 3):
        session = Session(radix, f"aborted after {taken}")
        session.feed(PARTS[0], max_tokens=6)
        session.take(taken)
        radix.abort(session.name)
        radix.drain()
        assert radix.used_blocks == 0
    expected = engine("off").run([Ask(PARTS[0])])
    assert_same(expected, radix.run([Ask(PARTS[0])]))
