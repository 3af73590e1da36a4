# SPDX-License-Identifier: Apache-2.0
"""Traces of text, read with a tokenizer that takes each word for a token."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from vllm_radix.bench.replay.sessions import Call, Workload
from vllm_radix.bench.replay.traces import TraceError, TraceOptions, read_trace

WORDS = ["<unk>", *"abcdefgh"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    words = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = WhitespaceSplit()
    folder = tmp_path_factory.mktemp("tokenizer")
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(folder)
    return str(folder)


def words(tokens: np.ndarray) -> str:
    return " ".join(WORDS[token] if token < len(WORDS) else "?" for token in tokens)


def read(path: Path, tokenizer: str, lines: list[dict[str, Any]], **options: Any) -> Workload:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return read_trace(path, TraceOptions(tokenizer=tokenizer, **options))


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
    with pytest.raises(TraceError, match=r"^There is no tokenizer '.*nowhere'"):
        read_trace(path, TraceOptions(tokenizer=str(tmp_path / "nowhere")))


def test_a_file_of_no_known_format_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('\n{"question": "a"}\n')
    with pytest.raises(TraceError, match="line 2: not a known format: give Mooncake"):
        read_trace(path, TraceOptions())
    with pytest.raises(TraceError, match="holds no session files"):
        read_trace(tmp_path, TraceOptions())
    with pytest.raises(TraceError, match="missing: No such file"):
        read_trace(tmp_path / "missing", TraceOptions())


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
    with pytest.raises(TraceError, match=r"log\.json: 1\.steps\.0\.ys: Field required\.$"):
        read_trace(path, TraceOptions(tokenizer=tokenizer))
