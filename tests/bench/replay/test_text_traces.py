# SPDX-License-Identifier: Apache-2.0
"""Traces of text, read with a tokenizer that takes each word for a token."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.bench.replay.words import save_tokenizer, words
from vllm_radix.bench.replay.sessions import NUM_TOKEN_IDS, Call, Span, Workload
from vllm_radix.bench.replay.traces import TraceError, TraceOptions, read_trace


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def read(path: Path, tokenizer: str, lines: list[dict[str, Any]], **options: Any) -> Workload:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return read_trace(path, TraceOptions(tokenizer=tokenizer, **options))


NAN, INFINITY = float("nan"), float("inf")
DIALOGUE = [
    {"prompt": "a b", "session": "one", "time": 10.0},
    {"prompt": "a", "session": 2, "time": 11.0, "answer": "c d"},
    {"prompt": "a b c d e", "session": "one", "time": 14.0},
    {"prompt": "h", "time": 30.0},
    {"prompt": "h h", "session": 2, "time": 12.0},
]


def test_lines_of_a_session_are_its_turns(tmp_path: Path, tokenizer: str) -> None:
    workload = read(tmp_path / "trace.jsonl", tokenizer, DIALOGUE, speed=2.0)
    assert [session.start for session in workload.sessions] == [0.0, 0.5, 10.0]
    one, two, alone = workload.sessions
    assert [words(call.prompt) for call in one.calls()] == ["a b", "a b c d e"]
    assert [words(call.prompt) for call in two.calls()] == ["a", "h h"]
    assert [words(call.prompt) for call in alone.calls()] == ["h"]
    assert [turn.think_time for turn in one.turns] == [0.0, 2.0]


def test_an_answer_is_what_the_next_prompt_goes_on_with(tmp_path: Path, tokenizer: str) -> None:
    workload = read(tmp_path / "trace.jsonl", tokenizer, DIALOGUE)
    first, last = workload.sessions[0].calls()
    assert words(first.answer[:3]) == "c d e"
    assert len(first.answer) == len(last.answer) == 16
    # This one does not go on, so the answer is the recorded one.
    assert words(next(workload.sessions[1].calls()).answer) == "c d"
    cut = read(tmp_path / "trace.jsonl", tokenizer, DIALOGUE, max_answer=1)
    assert [words(call.answer) for call in cut.calls()] == ["c", "?", "c", "?", "?"]


def test_an_answer_does_not_begin_a_prompt(tmp_path: Path) -> None:
    tokenizer = save_tokenizer(tmp_path, marks_beginning=True)
    line = {"prompt": "a", "answer": "c d"}
    (call,) = read(tmp_path / "trace.jsonl", tokenizer, [line]).calls()
    assert (words(call.prompt), words(call.answer)) == ("<s> a", "c d")


def test_images_are_where_their_parts_are(tmp_path: Path, tokenizer: str) -> None:
    page = {"type": "image_url", "image_url": {"url": "page.png"}}
    lines = [
        {"prompt": [{"type": "text", "text": "a b"}, page], "session": 1},
        {
            "prompt": [
                {"type": "text", "text": "a b"},
                page,
                {"type": "text", "text": "c d"},
                {**page, "tokens": 2},
                {"type": "text", "text": "e"},
            ],
            "session": 1,
        },
    ]
    workload = read(tmp_path / "trace.jsonl", tokenizer, lines, image_tokens=3)
    first, second = workload.calls()
    assert words(first.prompt) == "a b ? ? ?"
    assert words(second.prompt) == "a b ? ? ? c d ? ? e"
    assert first.images == (Span(2, 5),)
    assert second.images == (Span(2, 5), Span(7, 9))
    assert first.prompt.tolist() == second.prompt[:5].tolist()
    # The answer is what follows, but no model answers the image after that.
    assert words(first.answer[:2]) == "c d"
    assert len(first.answer) == 16
    assert max(first.answer) < NUM_TOKEN_IDS <= min(second.prompt[7:9])


def test_lines_without_times_come_at_once(tmp_path: Path, tokenizer: str) -> None:
    workload = read(tmp_path / "trace.jsonl", tokenizer, [{"prompt": "a"}, {"prompt": "b"}])
    assert [session.start for session in workload.sessions] == [0.0, 0.0]
    names = {session.name for session in workload.sessions}
    assert len(names) == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"session": 1}, "line 2: prompt: Field required"),
        ({"prompt": "a", "time": "noon"}, "line 2: time: Input should be a valid number"),
        ({"prompt": ""}, "line 2: the prompt has no tokens"),
        ({"prompt": "a", "time": NAN}, "line 2: time: Input should be a finite number"),
        ({"prompt": "a", "time": INFINITY}, "line 2: time: Input should be a finite number"),
        ({"prompt": "a", "time": -0.5}, "line 2: time: Input should be greater than or equal to 0"),
        ({"prompt": "a", "time": 1e12}, "line 2: time: Input should be less than or equal to 1"),
        ({"prompt": 3}, "line 2: prompt: a prompt is a string, or a list of parts .* a number"),
        (
            {"prompt": [{"type": "image_url", "image_url": {"url": "a"}, "tokens": NAN}]},
            r"line 2: prompt\[0\]\.tokens: Input should be a finite number",
        ),
        (
            {"prompt": [{"type": "image_url", "image_url": {"url": "a"}, "tokens": 10**12}]},
            r"line 2: prompt\[0\]\.tokens: Input should be less than or equal to 10000000",
        ),
        (
            {"prompt": [{"type": "image_url", "image_url": {"url": "a"}, "tokens": 0}]},
            r"line 2: prompt\[0\]\.tokens: Input should be greater than or equal to 1",
        ),
        (
            {"prompt": [{"type": "image_url", "image_url": {"url": "a"}}]},
            "line 2: nothing tells how many tokens an image takes",
        ),
        (
            {"prompt": [{"type": "image_url", "image_url": {}}]},
            r"line 2: prompt\[0\]\.image_url\.url: Field required\.$",
        ),
        (
            {"prompt": [{"type": "text", "text": "a"}, {"type": "text"}]},
            r"line 2: prompt\[1\]\.text: Field required\.$",
        ),
        (
            {"prompt": [{"type": "image_url", "image_url": {"url": "a"}, "token": 20}]},
            r'line 2: prompt\[0\]: Unknown key "token": there are type, image_url, uuid, tokens\.$',
        ),
        (
            {"prompt": [{"type": "image_url", "image_url": {"url": "a", "urls": "b"}}]},
            r'line 2: prompt\[0\]\.image_url: Unknown key "urls": there are url, detail\.$',
        ),
        ({"prompt": [{"type": "image"}]}, r"\}; prompt\[0\] has another type, or none\.$"),
        ({"prompt": "a", "session": [1]}, "line 2: session: Input should be a valid string"),
        ({"prompt": "a", "session": {"a": 1}}, "line 2: session: Input should be a valid string"),
    ],
)
def test_a_malformed_line_is_named(
    tmp_path: Path, tokenizer: str, line: dict[str, Any], message: str
) -> None:
    with pytest.raises(TraceError, match=message):
        read(tmp_path / "trace.jsonl", tokenizer, [{"prompt": "a"}, line])


def test_text_needs_a_tokenizer_that_exists(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"prompt": "a"}\n')
    with pytest.raises(TraceError, match="name the model's tokenizer with --tokenizer"):
        read_trace(path, TraceOptions())
    with pytest.raises(
        TraceError, match=r"^--tokenizer: .* no tokenizer in .*/nowhere: there is no such folder\.$"
    ):
        read_trace(path, TraceOptions(tokenizer=str(tmp_path / "nowhere")))
    # One of something else.
    with pytest.raises(TraceError, match=rf"^There is no tokenizer '{tmp_path}': "):
        read_trace(path, TraceOptions(tokenizer=str(tmp_path)))


def test_a_file_of_no_known_format_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('\n{"question": "a"}\n')
    known = (
        'line 2: not a known format: give Mooncake.* "session", "time" .in seconds. and "answer"'
    )
    with pytest.raises(TraceError, match=known):
        read_trace(path, TraceOptions())
    with pytest.raises(TraceError, match="holds no session files"):
        read_trace(tmp_path, TraceOptions())
    with pytest.raises(TraceError, match="missing: No such file"):
        read_trace(tmp_path / "missing", TraceOptions())


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.json"])
@pytest.mark.parametrize("content", ["", "\n \n"])
def test_an_empty_file_is_called_empty(tmp_path: Path, name: str, content: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(TraceError, match=f"{name} is empty.$"):
        read_trace(path, TraceOptions())


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("log.jsonl", '{"messages": []}', "log.jsonl, line 1"),
        ("log.json", '{"messages": []}', "log.json"),
        ("log.json", '[{"conversations": []}]', "log.json"),
    ],
)
def test_a_chat_log_has_to_be_rendered(tmp_path: Path, name: str, content: str, place: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(TraceError, match=f"{place}: a chat log has to be rendered to prompts"):
        read_trace(path, TraceOptions())


@pytest.mark.parametrize("value", ["9" * 5000, "[" * 100_000])
def test_json_that_python_cannot_read_is_named(tmp_path: Path, value: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(f'{{"prompt": "a", "time": {value}}}\n')
    with pytest.raises(TraceError, match="line 1: no JSON that can be read"):
        read_trace(path, TraceOptions())


def test_half_a_surrogate_is_a_character(tmp_path: Path, tokenizer: str) -> None:
    (call,) = read(tmp_path / "t.jsonl", tokenizer, [{"prompt": "a \ud83d b"}]).calls()
    assert words(call.prompt) == "a <unk> b"


# ---------------------------------------------------------------------- Tree of Thoughts

LOG = [
    {
        "steps": [
            {"step": 0, "x": "a b", "ys": [""], "new_ys": ["c\n", "d\n"], "values": [1, 2]},
            {"step": 1, "x": "a b", "ys": ["c\n", "d\n"], "new_ys": ["c\ne f\n", "d\ng\n"]},
        ],
        "idx": 900,
    },
    {"steps": [{"x": "h", "ys": [""], "new_ys": ["a\n"]}]},
]


def ends(calls: tuple[Call, ...], number: int) -> list[str]:
    return [words(call.prompt[-number:]) for call in calls]


def test_candidates_of_a_step_are_asked_for_at_once_then_judged(
    tmp_path: Path, tokenizer: str
) -> None:
    path = tmp_path / "log.json"
    path.write_text(json.dumps(LOG))
    workload = read_trace(path, TraceOptions(tokenizer=tokenizer, stagger=3.0))
    assert [session.start for session in workload.sessions] == [0.0, 3.0]
    propose, judge, propose_more, judge_more = (t.calls for t in workload.sessions[0].turns)
    assert ends(propose, 2) == ["a b", "a b"]
    assert [words(call.answer) for call in propose] == ["c", "d"]
    assert ends(judge, 3) == ["a b c", "a b d"]
    assert ends(propose_more, 3) == ["a b c", "a b d"]
    assert [words(call.answer) for call in propose_more] == ["e f", "g"]
    assert ends(judge_more, 5)[0] == "a b c e f"


def test_a_malformed_log_is_named(tmp_path: Path, tokenizer: str) -> None:
    path = tmp_path / "log.json"
    path.write_text(json.dumps([LOG[0], {"steps": [{"x": "h"}]}]))
    with pytest.raises(TraceError, match=r"log\.json: \[1\]\.steps\[0\]\.ys: Field required\.$"):
        read_trace(path, TraceOptions(tokenizer=tokenizer))
