# SPDX-License-Identifier: Apache-2.0
"""``vllm-radix replay`` from the command line."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from vllm.v1.core.sched.scheduler import Scheduler

from tests.bench.replay.words import save_tokenizer
from vllm_radix.bench.replay.report import Report
from vllm_radix.bench.replay.workloads import GENERATORS
from vllm_radix.cli import app

AGENTS = json.dumps(
    {
        "sessions": 6,
        "turns": 2,
        "system_tokens": 100,
        "user_tokens": [20, 40],
        "answer_tokens": [4, 8],
    }
)
WORKLOAD = f"agents:{AGENTS}"


class Interrupted(Scheduler):
    """Its user presses Ctrl-C in the tenth step."""

    num_steps = 0

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        self.num_steps += 1
        if self.num_steps == 10:
            raise KeyboardInterrupt
        return super().schedule(*args, **kwargs)


INTERRUPTED = f"{__name__}.Interrupted"


def invoke(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["replay", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, " ".join(result.output.split())


def read(path: Path) -> Report:
    return Report.model_validate_json(path.read_text())


def test_schedulers_are_compared_at_each_capacity(tmp_path: Path) -> None:
    files = ["--json", tmp_path / "out.json", "--png", tmp_path / "out.png"]
    seeds = ["--seed", 1, "--seed", 2]
    status, output = invoke(WORKLOAD, "--capacity", "320,1k", *seeds, *files)
    assert status == 0, output
    report = read(tmp_path / "out.json")
    assert [(run.seed, run.capacity, run.scheduler) for run in report.runs] == [
        (seed, capacity, scheduler)
        for seed in (1, 2)
        for capacity in (320, 1000)
        for scheduler in ("stock", "radix")
    ]
    assert all(run.is_complete and run.num_requests == 12 for run in report.runs)
    for run in report.runs:
        (bounds,) = [
            one for one in report.bounds if (one.seed, one.capacity) == (run.seed, run.capacity)
        ]
        assert run.hit_rate <= bounds.clairvoyant <= bounds.unlimited
    assert "agents: 12 requests, means over 2 seeds" in output
    assert "clairvoyant, order of stock" in output
    assert (tmp_path / "out.png").stat().st_size > 0
    assert report.settings["block_size"] == 16


def test_a_trace_brings_its_block_size_and_capacities(tmp_path: Path) -> None:
    line = {"timestamp": 0, "input_length": 1024, "output_length": 2, "hash_ids": [0, 1]}
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps(line) + "\n" for _ in range(3)))
    status, output = invoke(trace, "--scheduler", "stock", "--json", tmp_path / "out.json")
    assert status == 0, output
    report = read(tmp_path / "out.json")
    assert report.settings["block_size"] == 512
    # All they hold is one prompt; each capacity has room for the longest request at least.
    assert [run.capacity for run in report.runs] == [1536]
    assert report.runs[0].seed is None


def test_costs_are_those_asked_for(tmp_path: Path) -> None:
    costs = ["--step-ms", 1000, "--prefill-us", 0, "--decode-us", 0, "--attention-ns", 0]
    files = ["--json", tmp_path / "out.json"]
    status, output = invoke(WORKLOAD, "--capacity", "10k", "--scheduler", "stock", *costs, *files)
    assert status == 0, output
    (run,) = read(tmp_path / "out.json").runs
    assert run.makespan >= run.num_steps


def test_nothing_is_lost_when_interrupted(tmp_path: Path) -> None:
    files = ["--json", tmp_path / "out.json", "--png", tmp_path / "out.png"]
    schedulers = ["--scheduler", "radix", "--scheduler", INTERRUPTED, "--scheduler", "stock"]
    status, output = invoke(WORKLOAD, "--capacity", "1k", *schedulers, *files)
    assert status == 130
    report = read(tmp_path / "out.json")
    assert [(run.scheduler, run.is_complete) for run in report.runs] == [
        ("radix", True),
        (INTERRUPTED, False),
    ]
    assert report.runs[1].num_steps < report.runs[0].num_steps
    assert "Interrupted: these are the results so far." in output
    assert "stopped after" in output
    assert (tmp_path / "out.png").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "There is no workload or file 'nothing': give batch, agents,"),
        (["agents:{"], "what follows the colon is no JSON"),
        (["batch", "--scheduler", "fast"], "There is no scheduler 'fast'"),
        (["batch", "--capacity", "much"], "'much' is no number of tokens"),
        (
            ["batch", "--capacity", "1k"],
            "The longest request has 2116 tokens, so the capacity must be at least 2128, not 1000.",
        ),
        (["batch", "--limit", "3"], "Options for traces do not apply to 'batch'"),
        (["screens", "--image-tokens", "3"], "Options for traces do not apply to 'screens'"),
        (["batch", "--png", "/nowhere/at/all.png"], "--png: there is no folder /nowhere/at to"),
        (["batch", "--png", "x.foo"], "--png: x.foo must end with one of .avif, .eps,"),
        (["batch", "--png", "/"], "--png: / is a folder: name a file."),
        (["batch", "--json", "/nowhere/at/all"], "--json: there is no folder /nowhere/at to"),
        (["batch", "--json", "/tmp"], "--json: /tmp is a folder: name a file."),
        (["batch", "--json", "/dev/null"], "--json: /dev/null is no ordinary file"),
        (["batch", "--scheduler", "os.path.join"], "os.path.join is no scheduler"),
        (
            ["batch", "--max-num-batched-tokens", "16"],
            "--max-num-batched-tokens 16 is below --max-num-seqs 64: every sequence needs a token",
        ),
        (
            ['agents:{"think_time": Infinity}'],
            "agents: think_time: Input should be a finite number; the parameters are sessions,",
        ),
        (
            ['screens:{"screen_tokens": -3}'],
            "screens: screen_tokens: Input should be [low, high], two whole numbers; the",
        ),
        (
            ['screens:{"screen_tokens": [1, 0.5]}'],
            "screens: screen_tokens[1]: Input should be a valid integer",
        ),
        (['agents:{"user_tokens": [9, 3]}'], "user_tokens: The first number, 9, is above"),
    ],
)
def test_bad_input_gets_one_sentence(arguments: list[str], message: str) -> None:
    status, output = invoke(*arguments)
    assert status == 1
    assert message in output
    assert "Traceback" not in output


def test_a_malformed_trace_gets_one_sentence(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text('{"prompt": "a"}\n')
    assert "name the model's tokenizer" in invoke(trace)[1]
    trace.write_text('{"hash_ids": [1]}\n')
    assert "line 1: timestamp: Field required." in invoke(trace)[1]
    trace.write_text('{"timestamp": 0, "input_length": 9, "output_length": 2, "hash_ids": [0]}\n')
    assert "leave --seed out" in invoke(trace, "--seed", 1)[1]
    trace.write_text("")
    assert "t.jsonl is empty." in invoke(trace)[1]


@pytest.mark.parametrize(
    "option",
    [
        "--max-think",
        "--speed",
        "--stagger",
        "--step-ms",
        "--prefill-us",
        "--decode-us",
        "--attention-ns",
    ],
)
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_options_are_finite(option: str, value: str) -> None:
    status, output = invoke("batch", option, value)
    assert status == 2
    assert f"Invalid value for '{option}'" in output


def test_help_names_every_workload() -> None:
    output = CliRunner().invoke(app, ["replay", "--help"]).output
    words = set(re.split(r"[^\w-]+", output))
    assert set(GENERATORS) <= words
    assert "sizes count tokens" in " ".join(output.replace("│", " ").split())


def test_images_are_found_only_where_they_are_the_same(tmp_path: Path) -> None:
    tokenizer = save_tokenizer(tmp_path / "tokenizer")

    def line(seconds: int, *images: str) -> str:
        parts = [{"type": "image_url", "image_url": {"url": url}} for url in images]
        text = {"type": "text", "text": "a b " * 20}
        return json.dumps({"time": seconds, "prompt": [text, *parts, text], "answer": "c"})

    hits = {}
    for name, images in {"same": "xy", "last other": "xz", "swapped": "yx", "twice": "xx"}.items():
        trace = tmp_path / "trace.jsonl"
        trace.write_text(f"{line(0, *'xy')}\n{line(9, *images)}\n")
        options = ["--tokenizer", tokenizer, "--image-tokens", 40, "--capacity", "1k"]
        status, output = invoke(trace, *options, "--json", tmp_path / "out.json")
        assert status == 0, output
        for run in read(tmp_path / "out.json").runs:
            hits[run.scheduler, name] = round(run.hit_rate * 2 * 160)
    assert hits == {
        # All but the last token, which has to be computed.
        ("radix", "same"): 159,
        ("radix", "last other"): 80,
        ("radix", "swapped"): 40,
        ("radix", "twice"): 80,
        # The same in whole blocks of 16.
        ("stock", "same"): 144,
        ("stock", "last other"): 80,
        ("stock", "swapped"): 32,
        ("stock", "twice"): 80,
    }


def test_help_does_not_load_what_a_replay_needs() -> None:
    code = (
        "import sys\n"
        "from vllm_radix.cli import app\n"
        "loaded = {'vllm', 'torch', 'numpy', 'matplotlib'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
