# SPDX-License-Identifier: Apache-2.0
"""Traces of block ids become prompts that share exactly what the ids say."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vllm_radix.bench.replay.sessions import Call
from vllm_radix.bench.replay.traces import TraceError, TraceOptions, read_trace


def common(a: Call, b: Call) -> int:
    size = min(len(a.prompt), len(b.prompt))
    differing = np.flatnonzero(a.prompt[:size] != b.prompt[:size])
    return int(differing[0]) if len(differing) else size


def starts_with(call: Call, before: Call) -> bool:
    return np.array_equal(call.prompt[: before.num_tokens], before.text())


# ---------------------------------------------------------------------- Mooncake

NAN, INFINITY = float("nan"), float("inf")
LINES = [
    {"timestamp": 0, "input_length": 1300, "output_length": 500, "hash_ids": [0, 1, 2]},
    {"timestamp": 2000, "input_length": 1100, "output_length": 3, "hash_ids": [0, 1, 5]},
    {"timestamp": 4000, "input_length": 512, "output_length": 0, "hash_ids": [7]},
]


def write_lines(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def mooncake(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "trace.jsonl", LINES)


def test_mooncake_lines_are_requests_of_an_open_loop(mooncake: Path) -> None:
    workload = read_trace(mooncake, TraceOptions(speed=4))
    assert (workload.name, workload.block_size, workload.num_requests) == ("trace", 512, 3)
    assert [session.start for session in workload.sessions] == [0, 0.5, 1.0]
    calls = list(workload.calls())
    assert [len(call.prompt) for call in calls] == [1300, 1100, 512]
    assert [len(call.answer) for call in calls] == [500, 3, 1]
    assert common(calls[0], calls[1]) == 1024
    assert common(calls[0], calls[2]) == 0


def test_a_trace_is_read_in_part(mooncake: Path) -> None:
    workload = read_trace(mooncake, TraceOptions(limit=2, max_answer=16))
    assert [len(call.answer) for call in workload.calls()] == [16, 3]


def test_a_trace_reads_the_same_every_time(mooncake: Path) -> None:
    first, second = (read_trace(mooncake, TraceOptions()).calls() for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert np.array_equal(a.text(), b.text())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"line 3: no JSON \(Expecting property name enclosed in double quotes at column 2\)"),
        ("[1]", "line 3: not a JSON object"),
        ('{"timestamp": 0}', "line 3: input_length: Field required"),
        (json.dumps({**LINES[0], "input_length": "much"}), "line 3: input_length: Input should be"),
        (json.dumps({**LINES[0], "output_length": -1}), "line 3: output_length: Input should be"),
        (json.dumps({**LINES[0], "timestamp": NAN}), "line 3: timestamp: .* a finite number"),
        (json.dumps({**LINES[0], "timestamp": INFINITY}), "line 3: timestamp: .* a finite number"),
        (json.dumps({**LINES[0], "timestamp": -1}), "line 3: timestamp: .* or equal to 0"),
        (json.dumps({**LINES[0], "input_length": NAN}), "line 3: input_length: .* finite number"),
        (json.dumps({**LINES[0], "output_length": 10**12}), "output_length: .* less than or equal"),
        (json.dumps({**LINES[0], "hash_ids": [NAN]}), r"line 3: hash_ids\[0\]: .* a finite number"),
        (json.dumps({**LINES[0], "input_length": 1537}), "3 blocks of 512 .* not make 1537 tokens"),
        (json.dumps({**LINES[0], "input_length": 1024}), "3 blocks of 512 .* not make 1024 tokens"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(json.dumps(LINES[0]) + "\n\n" + line + "\n")
    with pytest.raises(TraceError, match=message) as error:
        read_trace(path, TraceOptions())
    assert str(error.value).startswith(f"{path}, line 3: ")
    assert str(error.value).endswith(".")
    assert "\n" not in str(error.value)


# ---------------------------------------------------------------------- kv-cache-tester


def request(num_input: int, hash_ids: list[int], t: float = 0.0, **more: Any) -> dict[str, Any]:
    return {"t": t, "type": "n", "in": num_input, "out": 20, "hash_ids": hash_ids, **more}


# A dialogue of blocks of eight tokens: it grows twice, then its middle is edited.
DIALOGUE = [
    request(20, [1, 2], think_time=0.0, api_time=1.5),
    request(45, [1, 2, 3, 4, 5], 10.0, think_time=7.0, api_time=2.0),
    request(70, [1, 2, 3, 4, 5, 6, 7, 8], 30.0),
    request(70, [1, 2, 3, 9, 10, 11, 12, 13], 40.0, think_time=2.0),
]


def write_session(folder: Path, name: str, requests: list[dict[str, Any]], **more: Any) -> Path:
    path = folder / f"{name}.json"
    session = {"id": name, "block_size": 8, "hash_id_scope": "local", "requests": requests, **more}
    path.write_text(json.dumps(session))
    return path


def test_a_session_continues_with_its_own_answers(tmp_path: Path) -> None:
    workload = read_trace(write_session(tmp_path, "a", DIALOGUE), TraceOptions())
    (session,) = workload.sessions
    calls = list(session.calls())
    assert workload.block_size == 8
    assert [len(call.prompt) for call in calls] == [20, 45, 70, 70]
    assert {len(call.answer) for call in calls} == {20}
    assert starts_with(calls[1], calls[0])
    assert starts_with(calls[2], calls[1])
    # The edit: what the ids share, and nothing else.
    assert common(calls[3], calls[2]) == 24


def test_a_cut_answer_is_the_beginning_of_the_true_one(tmp_path: Path) -> None:
    workload = read_trace(write_session(tmp_path, "a", DIALOGUE), TraceOptions(max_answer=4))
    calls = list(workload.calls())
    assert {len(call.answer) for call in calls} == {4}
    assert starts_with(calls[1], calls[0])


def test_think_times_are_those_recorded(tmp_path: Path) -> None:
    path = write_session(tmp_path, "a", DIALOGUE)
    (session,) = read_trace(path, TraceOptions()).sessions
    # The third has none: the time since the second, without the time of its answer.
    assert [turn.think_time for turn in session.turns] == [0.0, 7.0, 18.0, 2.0]
    (session,) = read_trace(path, TraceOptions(max_think=3, speed=2)).sessions
    assert [turn.think_time for turn in session.turns] == [0.0, 3.0, 3.0, 1.0]


def test_sessions_of_a_folder_share_nothing_but_global_ids(tmp_path: Path) -> None:
    for name in ("b", "a"):
        write_session(tmp_path, name, DIALOGUE)
    workload = read_trace(tmp_path, TraceOptions(stagger=2.0, max_turns=2))
    assert workload.name == tmp_path.name
    assert [session.start for session in workload.sessions] == [0.0, 2.0]
    assert [len(session.turns) for session in workload.sessions] == [2, 2]
    first, second = (list(session.calls()) for session in workload.sessions)
    assert common(first[0], second[0]) == 0
    for name in ("a", "b"):
        write_session(tmp_path, name, DIALOGUE, hash_id_scope="global")
    first, second = (list(s.calls()) for s in read_trace(tmp_path, TraceOptions()).sessions)
    assert common(first[1], second[1]) >= 40


def test_a_session_waits_for_its_sub_agents(tmp_path: Path) -> None:
    agents = [
        {"type": "subagent", "requests": [request(20, [1, 2]), request(40, [1, 2, 3, 4, 5])]},
        {"type": "subagent", "requests": [request(30, [1, 2, 3])]},
    ]
    path = write_session(tmp_path, "a", [DIALOGUE[0], *agents, DIALOGUE[1]])
    (session,) = read_trace(path, TraceOptions()).sessions
    sizes = [[len(call.prompt) for call in turn.calls] for turn in session.turns]
    assert sizes == [[20], [20, 30], [40], [45]]
    (own,), (one, other), (again,), (after,) = (turn.calls for turn in session.turns)
    assert starts_with(after, own)
    assert starts_with(again, one)
    assert common(one, other) == common(one, own) == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"requests": [', r"a\.json: no JSON \("),
        ("{}", r"a\.json: id: Field required"),
        (
            json.dumps({"id": "a", "block_size": 8, "requests": [{"type": "n", "t": 0}]}),
            r"a\.json: requests\[0\]\.in: Field required",
        ),
        (
            json.dumps({"id": "a", "block_size": 8, "requests": [request(40, [1, 2, 3, 4])]}),
            r"a\.json, session, request 1: 4 blocks of 8 tokens do not make 40 tokens",
        ),
    ],
)
def test_a_malformed_session_is_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(TraceError, match=message) as error:
        read_trace(path, TraceOptions())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("t", NAN, "finite number"),
        ("t", -1, "greater than or equal to 0"),
        ("think_time", NAN, "finite number"),
        ("think_time", INFINITY, "finite number"),
        ("think_time", -0.1, "greater than or equal to 0"),
        ("api_time", INFINITY, "finite number"),
        ("api_time", -1, "greater than or equal to 0"),
        ("in", 10**12, "less than or equal to 10000000"),
        ("out", NAN, "finite number"),
        ("out", 10**12, "less than or equal to 10000000"),
    ],
)
def test_numbers_of_a_session_are_finite_and_in_range(
    tmp_path: Path, field: str, value: float, message: str
) -> None:
    # The second request of a sub-agent: every number is checked, wherever it stands.
    agent = {"type": "subagent", "requests": [request(20, [1, 2]), {**DIALOGUE[0], field: value}]}
    path = write_session(tmp_path, "a", [agent])
    place = rf"a\.json: requests\[0\]\.requests\[1\]\.{field}: "
    with pytest.raises(TraceError, match=f"{place}Input should be a? ?{message}"):
        read_trace(path, TraceOptions())


def test_a_session_without_requests_is_left_out(tmp_path: Path) -> None:
    write_session(tmp_path, "a", [{"type": "subagent", "requests": []}])
    write_session(tmp_path, "b", DIALOGUE)
    (session,) = read_trace(tmp_path, TraceOptions()).sessions
    assert session.name == "1-b"


def test_sessions_of_different_block_sizes_do_not_mix(tmp_path: Path) -> None:
    write_session(tmp_path, "a", DIALOGUE)
    write_session(tmp_path, "b", [request(20, [1])], block_size=16)
    with pytest.raises(TraceError, match=r"blocks of \[8, 16\] tokens"):
        read_trace(tmp_path, TraceOptions())
