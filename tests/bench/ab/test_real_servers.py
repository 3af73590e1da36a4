# SPDX-License-Identifier: Apache-2.0
"""``vllm-radix ab`` with real servers of a tiny model, which end well or badly."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from engine.kernels import skip_without_vllm_for_cpu
from engine.models import tiny_llama

from vllm_radix.bench.ab.results import Results

from .processes import Command, command

pytestmark = pytest.mark.engine

# Two sessions' worth of blocks, for six.
FLAGS = (
    *("--dtype", "float32", "--max-model-len", "1024", "--block-size", "32", "--enforce-eager"),
    *("--num-gpu-blocks-override", "40", "--max-num-seqs", "4"),
)
TEMPLATE = "{% for m in messages %}{{ '<s>' + m.role + ' ' + m.content }}{% endfor %}<s>assistant "
PARAMETERS = {
    "num_sessions": 6,
    "turns": 3,
    "system_prompts": 2,
    "system_words": 10,
    "tools": 1,
    "message_words": [5, 9],
    "answer_tokens": 6,
    "think_time": 0.05,
    "start_within": 0.2,
}
CALLS = 18
# Seconds that a busy machine gets to start a server, or to end one.
PATIENCE = 300


@pytest.fixture(scope="module", autouse=True)
def _needs_vllm_for_cpu() -> None:
    skip_without_vllm_for_cpu("serve")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny_llama(tmp_path_factory.mktemp("tiny-llama"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@contextmanager
def ab(out: Path, model: Path, *arguments: str, **changes: object) -> Iterator[Command]:
    code = "import sys; sys.argv[0] = 'vllm-radix'; from vllm_radix.cli import app; app()"
    workload = f"agents:{json.dumps(PARAMETERS | changes)}"
    options = ("--out", str(out), "--workload", workload, "--rounds", "1", *arguments)
    with command(
        [sys.executable, "-c", code, "ab", *options, "--", str(model), *FLAGS],
        VLLM_CPU_KVCACHE_SPACE="1",
        HF_HUB_OFFLINE="1",
        VLLM_NO_USAGE_STATS="1",
    ) as running:
        yield running


def read(out: Path) -> Results:
    return Results.model_validate_json((out / "results.json").read_text())


def test_both_caches_give_the_same_answers(tmp_path: Path, model: Path) -> None:
    with ab(tmp_path, model, "--arm", "stock", "--arm", "radix") as running:
        status, output = running.finish(2 * PATIENCE)
    assert status == 0, output
    results = read(tmp_path)
    for run in results.runs:
        assert run.is_complete
        assert len(run.requests) == run.num_calls == CALLS
        assert run.figures is not None
        assert run.figures.hit_rate is not None
        assert run.figures.hit_rate > 0.2
        assert run.samples[-1].queries == sum(request.prompt_tokens for request in run.requests)
        cached = sum(request.cached_tokens or 0 for request in run.requests)
        assert cached == run.samples[-1].hits
    # Whole blocks on stock, single tokens on ours.
    assert all((r.cached_tokens or 0) % 32 == 0 for r in results.complete("stock")[0].requests)
    assert any((r.cached_tokens or 0) % 32 for r in results.complete("radix")[0].requests)
    (comparison,) = results.comparisons
    assert comparison.compared == comparison.identical == CALLS
    assert comparison.max_logprob_difference is not None
    assert comparison.max_logprob_difference < 1e-4
    assert (tmp_path / "report.html").exists()


def test_an_engine_that_is_killed_ends_it(tmp_path: Path, model: Path) -> None:
    # Sessions long enough to be interrupted.
    with ab(tmp_path, model, "--arm", "radix", think_time=30) as running:
        running.wait_for_line("answering")
        engines = _engines(running)
        assert engines
        for pid in engines:
            os.kill(pid, signal.SIGKILL)
        status, output = running.finish(PATIENCE)
    assert status == 1
    assert "The server ended by itself" in output or "failed a request" in output
    results = read(tmp_path)
    assert [run.is_complete for run in results.runs] == [False]
    assert results.error


def test_nothing_is_left_after_ctrl_c(tmp_path: Path, model: Path) -> None:
    with ab(tmp_path, model, "--arm", "radix", think_time=30) as running:
        running.wait_for_line("answering")
        running.process.send_signal(signal.SIGINT)
        status, output = running.finish(PATIENCE)
    assert status == 130
    assert "Interrupted: these are the results so far." in output
    (run,) = read(tmp_path).runs
    assert not run.is_complete
    assert run.requests


def _engines(running: Command) -> list[int]:
    """The engine core's process, which names itself so."""
    found = []
    for pid in running.left():
        title = Path(f"/proc/{pid}/cmdline").read_bytes()
        if b"EngineCore" in title:
            found.append(pid)
    return found
