# SPDX-License-Identifier: Apache-2.0
"""Workloads are the same for a seed, and a turn contains the answers before it."""

import base64
import io
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from vllm_radix.bench.ab.workloads import WORKLOADS, make_workload
from vllm_radix.bench.ab.workloads.base import Call, FileWorkload, Session, Turn

SMALL: dict[str, dict[str, Any]] = {
    "agents": {"num_sessions": 6, "turns": 3, "system_prompts": 2},
    "extraction": {"documents": 3, "pages": 3},
    "tree-search": {"problems": 2, "depth": 3, "candidates": 4, "kept": 2},
    "few-shot": {"tasks": 2, "sessions_per_task": 2, "questions": 2},
    "screens": {"num_sessions": 4, "tasks": 2, "width": 64, "height": 64},
    "unique": {"num_sessions": 3, "requests": 2},
    "swe": {"copies": 3},
    "generative": {"num_sessions": 5},
}
CONVERSATIONS = ("agents", "extraction", "tree-search", "few-shot", "screens", "swe")


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., list[Session]]:
    """A function that makes a small workload's sessions, some parameters of which may be given."""
    swe = tmp_path / "swe"
    swe.mkdir()
    # As recorded: out of order, and one call that tells nothing new.
    inputs = [(1, "do it"), (3, "do it. saw b. saw c"), (2, "do it. saw b"), (4, "do it. saw b")]
    lines = [{"timestamp": t, "input": text, "session_id": "s"} for t, text in inputs]
    (swe / "one.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(f'{{"prompt": "prompt {n}", "kind": "k"}}\n' for n in range(7)))
    data = {"swe": swe, "generative": prompts}

    def get(name: str, seed: int = 0, **changes: Any) -> list[Session]:
        text = f"{name}:{json.dumps(SMALL[name] | changes)}"
        return make_workload(text, data.get(name)).sessions(seed)

    return get


def answer_of(call: Call, number: int) -> str:
    return f" answer {number} to {len(call.content)} at {call.seed}"


def full_answer(call: Call, number: int) -> str:
    return " a" * call.max_tokens


def play(session: Session, answer: Callable[[Call, int], str] = answer_of) -> list[Turn]:
    """Hold a session with made-up answers."""
    turns = []
    generator = session.turns()
    turn = next(generator)
    while True:
        turns.append(turn)
        texts = [[answer(call, n) for n in range(call.n)] for call in turn.calls]
        try:
            turn = generator.send(texts)
        except StopIteration:
            return turns


def text_of(call: Call) -> str:
    if isinstance(call.content, str):
        return call.content
    return "\n".join(str(message["content"]) for message in call.content)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_seed_makes_the_same_sessions(make: Callable[..., list[Session]], name: str) -> None:
    sessions = make(name)
    played = [play(session) for session in sessions]
    assert played == [play(session) for session in sessions]
    assert played == [play(session) for session in make(name)]
    assert len({session.name for session in sessions}) == len(sessions)
    for session, turns in zip(sessions, played, strict=True):
        assert session.num_calls == sum(len(turn.calls) for turn in turns) > 0
    others = make(name, 1)
    assert [(one.name, one.start) for one in others] != [(one.name, one.start) for one in sessions]
    if name not in ("swe", "generative"):
        assert [play(session) for session in others] != played


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_turn_contains_the_answers_before_it(
    make: Callable[..., list[Session]], name: str
) -> None:
    for session in make(name):
        turns = play(session)
        found = 0
        for before, turn in pairwise(turns):
            texts = [answer_of(call, n) for call in before.calls for n in range(call.n)]
            found += sum(
                any(text.strip() in text_of(call) for text in texts) for call in turn.calls
            )
        # Of few-shot's turns every other one is a new question.
        expected = sum(len(turn.calls) for turn in turns[1:])
        assert found == (expected - 1) // 2 + 1 if name == "few-shot" else found == expected


def test_agents_extend_their_conversation(make: Callable[..., list[Session]]) -> None:
    systems = set()
    for session in make("agents"):
        turns = play(session)
        for before, turn in pairwise(turns):
            old, new = before.calls[0].content, turn.calls[0].content
            assert new[: len(old)] == old
            roles = [message["role"] for message in new[len(old) :]]
            assert roles == ["assistant", "user"]
            assert "<tool_result>" in new[-1]["content"]
        systems.add(turns[0].calls[0].content[0]["content"])
    assert len(systems) == 2
    assert all('"parameters": {"type": "object"' in text for text in systems)


def test_a_search_keeps_some_of_its_thoughts(make: Callable[..., list[Session]]) -> None:
    turns = play(make("tree-search")[0])
    assert [len(turn.calls) for turn in turns] == [1, 2, 2]
    assert all(call.n == 4 and call.temperature > 0 for turn in turns for call in turn.calls)
    seeds = [call.seed for turn in turns for call in turn.calls]
    assert len(set(seeds)) == len(seeds)
    assert None not in seeds
    root = turns[0].calls[0].content
    assert all(call.content.startswith(root) for turn in turns for call in turn.calls)


def test_questions_share_their_examples(make: Callable[..., list[Session]]) -> None:
    heads = {
        play(session)[0].calls[0].content.rpartition("Question:")[0] for session in make("few-shot")
    }
    assert len(heads) == 2
    assert all("The answer is" in head for head in heads)


def test_screens_are_opened_once_and_shared(make: Callable[..., list[Session]]) -> None:
    """They stay in the conversation; agents of one task look at the same ones."""
    opened = []
    for session in make("screens"):
        turns = play(session)
        assert len(turns) == 6
        shown = [
            [
                part["image_url"]["url"]
                for message in turn.calls[0].content
                if isinstance(message["content"], list)
                for part in message["content"]
                if part["type"] == "image_url"
            ]
            for turn in turns
        ]
        assert [len(urls) for urls in shown] == [1, 1, 1, 2, 2, 2]
        assert all(last[: len(urls)] == urls for urls in shown for last in shown[-1:])
        opened.append(tuple(shown[-1]))
    assert len(set(opened)) == 2
    screens = {screen for urls in opened for screen in urls}
    assert len(screens) == 4
    for screen in screens:
        head, _, data = screen.partition(",")
        assert head == "data:image/png;base64"
        assert Image.open(io.BytesIO(base64.b64decode(data))).size == (64, 64)


def test_unique_prompts_begin_differently(make: Callable[..., list[Session]]) -> None:
    prompts = [call.content for one in make("unique") for turn in play(one) for call in turn.calls]
    assert len({prompt[:60] for prompt in prompts}) == len(prompts) == 6


def test_recorded_sessions_are_told_what_is_new(make: Callable[..., list[Session]]) -> None:
    sessions = make("swe")
    assert {session.name for session in sessions} == {"one-0", "one-1", "one-2"}
    last = play(sessions[0])[-1].calls[0].content
    users = [message["content"] for message in last if message["role"] == "user"]
    assert users == ["do it", ". saw b", ". saw c"]


def test_recorded_prompts_are_dealt_out(make: Callable[..., list[Session]]) -> None:
    played = {
        session.name: [turn.calls[0].content for turn in play(session)]
        for session in make("generative")
    }
    assert played == {
        "person-0": ["prompt 0", "prompt 5"],
        "person-1": ["prompt 1", "prompt 6"],
        "person-2": ["prompt 2"],
        "person-3": ["prompt 3"],
        "person-4": ["prompt 4"],
    }


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_parameter_has_a_default(name: str) -> None:
    workload = WORKLOADS[name]
    needed = {field for field, info in workload.model_fields.items() if info.is_required()}
    assert needed == ({"path"} if issubclass(workload, FileWorkload) else set())
    assert workload.about


@pytest.mark.parametrize(
    ("name", "parameter"),
    [(name, parameter) for name, workload in WORKLOADS.items() for parameter in workload.lengthens],
)
def test_what_lengthens_does(make: Callable[..., list[Session]], name: str, parameter: str) -> None:
    assert set(WORKLOADS[name].lengthens) <= set(WORKLOADS[name].model_fields)

    def longest(value: object) -> int:
        calls = [
            call
            for session in make(name, **{parameter: value})
            for turn in play(session, full_answer)
            for call in turn.calls
        ]
        return max(len(text_of(call)) + call.max_tokens for call in calls)

    is_range = isinstance(WORKLOADS[name].model_fields[parameter].default, tuple)
    few, many = ([2, 4], [200, 400]) if is_range else (1, 50)
    assert longest(few) < longest(many)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("swe", '{"input": "a"}\n', "line 1: timestamp: Field required."),
        ("swe", "", "holds no calls."),
        ("generative", "[]\n", "line 1: not a JSON object."),
        ("generative", "\n", "holds no prompts."),
    ],
)
def test_a_malformed_file_is_named(tmp_path: Path, name: str, content: str, message: str) -> None:
    file = tmp_path / "file.jsonl"
    file.write_text(content)
    with pytest.raises(ValueError, match=rf"file\.jsonl.* ?{message}"):
        make_workload(name, file).sessions(0)
