# SPDX-License-Identifier: Apache-2.0
"""``vllm-radix ab`` from the command line, with servers that have no model."""

import json
import re
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from vllm_radix.bench import server
from vllm_radix.bench.ab.results import Results
from vllm_radix.bench.ab.workloads import WORKLOADS, is_workload
from vllm_radix.bench.server import Program, Server, free_port
from vllm_radix.cli import app

from . import fake_cli
from .processes import Command, command, wait_until

AGENTS = json.dumps(
    {
        "num_sessions": 4,
        "turns": 3,
        "system_prompts": 2,
        "system_words": 20,
        "tools": 1,
        "message_words": [5, 20],
        "answer_tokens": 8,
        "think_time": 0.01,
        "start_within": 0.1,
    }
)
WORKLOAD = ("--workload", f"agents:{AGENTS}")
CALLS = 4 * 3


# As a shell starts what runs in a script's background.
DEAF_TO_CTRL_C = ("sh", "-c", "trap '' INT; exec \"$@\"", "sh")


@contextmanager
def ab(out: Path, *arguments: str, prefix: tuple[str, ...] = ()) -> Iterator[Command]:
    cli = [sys.executable, fake_cli.__file__, "ab", "--out", str(out)]
    with command([*prefix, *cli, *arguments]) as running:
        yield running


def run(out: Path, *arguments: str) -> tuple[int, str]:
    with ab(out, *arguments) as running:
        status, output = running.finish()
    assert "Traceback" not in output
    return status, " ".join(output.split())


def read(out: Path) -> Results:
    return Results.model_validate_json((out / "results.json").read_text())


@pytest.fixture
def _no_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    def vllm(*arguments: str) -> list[str]:
        pytest.fail(f"it ran vllm {arguments}")

    monkeypatch.setattr(server, "vllm", vllm)


def test_every_arm_runs_in_every_round(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    status, output = run(out, *WORKLOAD, "--rounds", "2", "--seed", "7", "--", "fake", "--flag")
    assert status == 0, output
    results = read(out)
    assert [(one.round, one.seed, one.arm) for one in results.runs] == [
        (1, 7, "no-cache"),
        (1, 7, "stock"),
        (1, 7, "radix"),
        (2, 8, "stock"),
        (2, 8, "radix"),
        (2, 8, "no-cache"),
    ]
    assert all(
        one.is_complete and one.cache == "fresh server" and one.version == "1.2.3"
        for one in results.runs
    )
    assert {len(one.requests) for one in results.runs} == {CALLS}
    for one in results.runs:
        assert one.figures is not None
        assert one.figures.hit_rate == (None if one.arm == "no-cache" else pytest.approx(0.5, 0.1))
        assert one.figures.kv_usage_mean == 0.5
        assert 0 < one.figures.ttft_p50 <= one.figures.e2e_p50 <= one.figures.e2e_p99
        assert one.figures.output_tps == pytest.approx(CALLS * 8 / one.duration)
    assert [(one.round, one.arm) for one in results.comparisons] == [
        (1, "stock"),
        (1, "radix"),
        (2, "stock"),
        (2, "radix"),
    ]
    assert all(one.compared == one.identical == CALLS for one in results.comparisons)
    assert results.base == "stock"
    assert {change.arm for change in results.changes} == {"no-cache", "radix"}
    serve = "vllm_radix.Scheduler"
    assert [serve in arm.what for arm in results.arms] == [False, False, True]
    assert all("serve fake --flag" in arm.what for arm in results.arms)
    assert "agents: medians over 2 rounds" in output
    assert (out / "report.html").read_text().startswith("<!doctype html>")
    assert len(list((out / "logs").iterdir())) == 6


def test_answers_that_differ_are_found(tmp_path: Path) -> None:
    arms = ("--arm", "a=--slowly", "--arm", "b=--answer-of b")
    status, output = run(tmp_path, *arms, *WORKLOAD, "--rounds", "1", "--", "fake")
    assert status == 0, output
    (comparison,) = read(tmp_path).comparisons
    num_different = comparison.compared - comparison.identical
    assert num_different == len(comparison.differences) > 0
    # What follows a difference has another prompt.
    assert comparison.compared + comparison.other_prompts == CALLS
    for difference in comparison.differences:
        assert difference.position == 2
        # Each arm's own token has 0.5, the other one's 0.4.
        assert difference.reference.gap == pytest.approx(0.2231, abs=1e-3)
        assert difference.other.gap == pytest.approx(0.2231, abs=1e-3)
        assert difference.reference.token != difference.other.token


def test_tree_search_asks_for_several_answers(tmp_path: Path) -> None:
    search = '{"problems": 2, "depth": 2, "candidates": 3, "kept": 2, "thought_tokens": 4}'
    arms = ("--arm", "stock", "--arm", "radix")
    status, output = run(
        tmp_path, *arms, "--workload", f"tree-search:{search}", "--rounds", "1", "--", "fake"
    )
    assert status == 0, output
    results = read(tmp_path)
    for one in results.runs:
        assert len(one.requests) == one.num_calls == 2 * (1 + 2)
        assert {request.output_tokens for request in one.requests} == {3 * 4}
    assert results.comparisons[0].compared == results.comparisons[0].identical == 3 * 6
    assert results.comparisons[0].sampled


def test_sessions_are_named_if_asked_for(tmp_path: Path) -> None:
    for options, expected in (
        ((), {"None"}),
        (("--session-ids",), {f"agent-{n}" for n in range(4)}),
    ):
        out = tmp_path / str(len(options))
        status, output = run(
            out, "--arm", "a=--flag", *options, *WORKLOAD, "--rounds", "1", "--", "fake"
        )
        assert status == 0, output
        lines = (out / "logs" / "a-1.log").read_text().splitlines()
        # The first three warm it up.
        assert {line.removeprefix("session ") for line in lines[3:]} == expected


def test_an_arm_that_dies_leaves_the_results_so_far(tmp_path: Path) -> None:
    arms = ("--arm", "a=--flag", "--arm", "b=--die-after 9", "--arm", "c=--flag")
    status, output = run(tmp_path, *arms, *WORKLOAD, "--rounds", "1", "--", "fake")
    assert status == 1
    assert (
        f"The server ended by itself with exit code 7, see {tmp_path / 'logs' / 'b-1.log'}. "
        "Its log says: EngineDeadError: the engine is dead" in output
    )
    results = read(tmp_path)
    assert [(one.arm, one.is_complete) for one in results.runs] == [("a", True), ("b", False)]
    assert 0 < len(results.runs[1].requests) < 9
    assert results.error is not None
    assert "exit code 7" in results.error
    assert "Ended early" in (tmp_path / "report.html").read_text()


SCREENS = (
    '{"num_sessions": 3, "screens": 2, "questions": 2, "width": 32, "height": 32, '
    '"system_words": 5, "answer_tokens": 4, "think_time": 0.01, "start_within": 0.1}'
)


@pytest.mark.parametrize("level", ["INFO", "ERROR"])
def test_encoded_images_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", level)
    arms = ("--arm", "stock", "--arm", "b=--no-enable-logging-iteration-details")
    workload = ("--workload", f"screens:{SCREENS}")
    status, output = run(tmp_path, *arms, *workload, "--rounds", "1", "--", "fake")
    assert status == 0, output
    # The first screen in four prompts of each session, the second in two of them.
    stock, other = read(tmp_path).runs
    assert stock.images_encoded == 3 * (4 + 2)
    assert stock.figures is not None
    assert stock.figures.images_encoded == stock.images_encoded
    assert other.images_encoded is None
    assert re.search(r"images encoded │ 18 │ - │", output)
    assert "images encoded" in (tmp_path / "report.html").read_text()
    assert "--enable-logging-iteration-details" in read(tmp_path).arms[0].what


def test_texts_are_not_looked_through_for_images(tmp_path: Path) -> None:
    status, output = run(tmp_path, "--arm", "stock", *WORKLOAD, "--rounds", "1", "--", "fake")
    assert status == 0, output
    assert "iteration-details" not in read(tmp_path).arms[0].what
    assert read(tmp_path).runs[0].images_encoded is None
    assert "images encoded" not in output + (tmp_path / "report.html").read_text()


def test_a_server_that_hangs_up_is_told_of(tmp_path: Path) -> None:
    arms = ("--arm", "a=--hang-up-after 5")
    status, output = run(tmp_path, *arms, *WORKLOAD, "--rounds", "1", "--", "fake")
    assert status == 1
    assert (
        "failed a request: Connection error (RemoteProtocolError: Server disconnected without "
        "sending a response)." in output
    )


@pytest.mark.parametrize(
    ("kind", "prefix"), [(signal.SIGINT, ()), (signal.SIGTERM, DEAF_TO_CTRL_C)]
)
def test_nothing_is_lost_or_left_when_interrupted(
    tmp_path: Path, kind: signal.Signals, prefix: tuple[str, ...]
) -> None:
    arms = ("--arm", "a=--flag", "--arm", "b=--slow")
    run_it = (*arms, *WORKLOAD, "--rounds", "1", "--", "fake")
    with ab(tmp_path, *run_it, prefix=prefix) as running:
        running.wait_for_line("b: answering")
        running.process.send_signal(kind)
        status, output = running.finish()
    assert status == 130
    assert "Interrupted: these are the results so far." in output
    assert "Traceback" not in output
    results = read(tmp_path)
    assert results.complete("a")
    assert not results.complete("b")
    assert results.error == "interrupted"


def test_a_killed_program_takes_its_servers_with_it(tmp_path: Path) -> None:
    with ab(tmp_path, "--arm", "a=--slow", *WORKLOAD, "--rounds", "1", "--", "fake") as running:
        running.wait_for_line("answering")
        assert len(running.left()) >= 3
        running.process.kill()
        running.finish()
    # No result is better than half of one.
    assert not list(tmp_path.glob("*.part"))


def test_a_server_that_does_not_start_shows_its_log(tmp_path: Path) -> None:
    status, output = run(tmp_path, "--arm", "a=--context none", *WORKLOAD, "--", "fake")
    assert status == 1
    assert "error: argument --context: invalid int value: 'none'" in output
    assert "The server ended by itself with exit code 2" in output
    assert "exit code 2" in (read(tmp_path).error or "")


def test_sessions_end_where_the_context_does(tmp_path: Path) -> None:
    arms = ("--arm", "a=--context 1500", "--arm", "b=--context 1500")
    status, output = run(tmp_path, *arms, *WORKLOAD, "--rounds", "1", "--", "fake")
    assert status == 0, output
    first, second = read(tmp_path).runs
    cut, answered = first.cut_sessions, len(first.requests)
    assert (second.cut_sessions, len(second.requests)) == (cut, answered)
    assert cut > 0
    assert 0 < answered < CALLS
    how = (
        "raise --max-model-len, or lower turns, system_words, tools, message_words or "
        "answer_tokens of --workload agents."
    )
    assert (
        f"In each run, {cut} of 4 sessions ended early, at the model's context length, so that "
        f"{CALLS - answered} of {CALLS} calls were not answered: {how}" in output
    )
    status, output = run(tmp_path / "b", "--arm", "a=--context 99", *WORKLOAD, "--", "fake")
    assert status == 1
    assert f"No prompt fits into the model's context: {how}" in output


def test_runs_may_differ_in_what_the_context_cuts(tmp_path: Path) -> None:
    arms = ("--arm", "a=--context 1500", "--arm", "b=--flag")
    status, output = run(tmp_path, *arms, *WORKLOAD, "--rounds", "1", "--", "fake")
    assert status == 0, output
    (one,) = read(tmp_path).complete("a")
    assert f"In each run, 0 to {one.cut_sessions} of 4 sessions ended early" in output
    assert f"so that 0 to {CALLS - len(one.requests)} of {CALLS} calls were not answered" in output


def test_running_servers_are_used_and_left_alone(tmp_path: Path) -> None:
    fake = fake_cli.vllm("serve", "fake", "--enable-prefix-caching")
    with Server(fake, tmp_path / "a") as a, Server([*fake, "--no-reset"], tmp_path / "b") as b:
        a.wait_until_ready()
        b.wait_until_ready()
        arms = ("--arm", f"a={a.url}", "--arm", f"b={b.url}/v1/")
        status, output = run(tmp_path / "out", *arms, *WORKLOAD, "--rounds", "2")
        assert status == 0, output
        a.check()
        b.check()
    results = read(tmp_path / "out")
    assert {one.cache for one in results.complete("a")} == {"reset"}
    assert all(one.cache.startswith("kept") for one in results.complete("b"))
    assert any("The cache of b was not empty" in note for note in results.notes)
    # Counts are those of a run, not of a server's life.
    for one in results.runs:
        assert one.samples[0].queries == 0
        assert one.figures is not None
        assert one.figures.preemptions == 0


def test_open_loops_are_handed_over(tmp_path: Path) -> None:
    arms = ("--arm", "a=--flag", "--arm", "b=--flag")
    flags = ("--open-loop", "--num-prompts 5 --request-rate 4")
    status, output = run(tmp_path, *arms, *flags, "--rounds", "1", "--", "fake")
    assert status == 0, output
    results = read(tmp_path)
    for one in results.runs:
        assert one.num_calls == 5
        assert one.samples
        assert one.figures is not None
        assert one.figures.ttft_p50 == 0.5
        assert one.figures.tpot_p50 == pytest.approx(0.2)
        assert one.figures.e2e_p50 == pytest.approx(0.9)
        assert one.figures.output_tps == pytest.approx(5 * 3 / 2.0)
    assert results.comparisons[0].identical == 5
    failing = ("--open-loop", "--num-prompts 5 --failing")
    status, output = run(tmp_path / "b", "--arm", "a=--flag", *failing, "--", "fake")
    assert status == 1
    assert "5 of 5 requests failed: ValueError: no" in output
    unknown = ("--open-loop", "--num-prompts many")
    status, output = run(tmp_path / "c", "--arm", "a=--flag", *unknown, "--", "fake")
    assert status == 1
    assert "invalid int value: 'many' The load generator ended with exit code 2" in output


@pytest.mark.usefixtures("_no_servers")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--workload", "nothing", "--", "m"],
            "There is no workload 'nothing': give one of agents,",
        ),
        (["--workload", "agents:{", "--", "m"], "what follows the colon is no JSON"),
        (
            ["--workload", 'agents:{"size": 3}', "--", "m"],
            "agents: size: Extra inputs are not permitted; the parameters are num_sessions, turns",
        ),
        (
            ["--workload", "swe", "--", "m"],
            "swe reads recorded texts: name their file with --data.",
        ),
        (["--workload", "swe", "--data", "/no/where", "--", "m"], "--data: there is no /no/where."),
        (["--data", "/", "--", "m"], "agents makes its own texts: leave --data out."),
        ([], "Name the model that no-cache, stock, radix shall serve"),
        (
            ["--", "--max-model-len", "10"],
            "with its flags, after --: vllm-radix ab --workload agents -- MODEL --max-model-len",
        ),
        (
            ["agents", "--", "m", "--max-model-len", "99"],
            "agents is a workload, not a model: write vllm-radix ab --workload agents -- m "
            "--max-model-len 99.",
        ),
        (
            ['screens:{"turns": 2}'],
            "vllm-radix ab --workload 'screens:{\"turns\": 2}' -- MODEL --max-model-len 8192.",
        ),
        (
            ["--workload", 'agents:{"think_time": NaN}', "--", "m"],
            "agents: think_time: Input should be a finite number; the parameters are",
        ),
        (
            ["--workload", 'agents:{"message_words": [9, 3]}', "--", "m"],
            "message_words: The first number, 9, is above the second",
        ),
        (["--", "/no/model"], "There is no model in /no/model: there is no such folder."),
        (["--", "m", "--scheduler-cls", "x"], "--scheduler-cls is what the arms differ in"),
        (["--", "m", "--port=1"], "--port is an option of its own, before the --"),
        (["--arm", "fast", "--", "m"], "There is no arm 'fast': give no-cache, stock, radix"),
        (["--arm", "a=b", "--", "m"], "--arm 'a=b': give an address"),
        (["--arm", "stock", "--arm", "stock", "--", "m"], "There are two arms 'stock'"),
        (["--base", "x", "--", "m"], "--base x: the arms are no-cache, stock, radix."),
        (["--arm", "a=http://localhost:1", "--", "m"], "All arms are running servers"),
        (
            ["--arm", "a=http://localhost:1"],
            "a: no OpenAI-compatible server answers at http://localhost:1 (",
        ),
        # Before the first server is started.
        (
            ["--arm", "stock", "--arm", "a=http://localhost:1", "--", "m"],
            "Connection refused): start it, or correct its address.",
        ),
        (["--arm", "a=http://localhost:x"], "(Invalid port: 'x'): start it, or correct"),
        (["--arm", "a=http://."], "a: no OpenAI-compatible server answers at http://. ("),
        (["--open-loop", "--base-url x", "--", "m"], "--open-loop: --base-url is set for each run"),
        (["--open-loop", "", "--workload", "agents", "--", "m"], "leave --workload and --data out"),
    ],
)
def test_bad_input_gets_one_sentence(tmp_path: Path, arguments: list[str], message: str) -> None:
    status, output = invoke("--out", str(tmp_path / "out"), *arguments)
    assert status == 1
    assert message in output
    assert "Traceback" not in output
    assert not (tmp_path / "out").exists()


def test_a_server_of_something_else_gets_one_sentence(tmp_path: Path) -> None:
    files = [sys.executable, "-m", "http.server", "--bind"]
    port = str(free_port())
    with Program([*files, "127.0.0.1", port], tmp_path / "log"):
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: _answers(url), 20)
        status, output = invoke("--out", str(tmp_path / "out"), "--arm", f"a={url}")
    assert status == 1
    assert output.startswith(f"a: no OpenAI-compatible server answers at {url} (Client error '404")
    assert output.endswith("start it, or correct its address.")


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False).is_success
    except httpx.TransportError:
        return False


@pytest.mark.usefixtures("_no_servers")
@pytest.mark.parametrize("option", ["--start-timeout", "--request-timeout"])
def test_timeouts_are_finite(tmp_path: Path, option: str) -> None:
    status, output = invoke("--out", str(tmp_path / "out"), option, "inf", "--", "m")
    assert status == 2
    assert f"Invalid value for '{option}'" in output


@pytest.mark.usefixtures("_no_servers")
def test_an_earlier_run_is_left_alone(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    results.write_text("hours of work")
    status, output = invoke("--out", str(tmp_path), "--", "m")
    assert status == 1
    assert f"--out: {tmp_path} holds the results of an earlier run: choose another" in output
    assert results.read_text() == "hours of work"
    assert list(tmp_path.iterdir()) == [results]


@pytest.mark.usefixtures("_no_servers")
def test_a_folder_of_a_models_name_is_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_workload("agents")
    (tmp_path / "agents").mkdir()
    assert not is_workload("agents")


def test_help_names_every_workload() -> None:
    status, output = invoke("--help")
    assert status == 0
    words = set(re.split(r"[^\w-]+", output))
    assert set(WORKLOADS) <= words
    text = " ".join(output.replace("│", " ").split())
    assert "requests are texts, with images for screens, and sizes count words" in text
    assert "--list-workloads" in words


def test_all_parameters_are_listed() -> None:
    status, output = invoke("--list-workloads")
    assert status == 0
    for name, workload in WORKLOADS.items():
        listed = output.partition(f"{name}: {workload.about}")[2]
        for parameter in workload.model_fields.keys() - {"path"}:
            assert parameter in listed
    assert "message_words [80, 250] Words of a task or of a tool's result." in output
    assert "limit null Only so many prompts, from the first." in output
    assert " path " not in output


@pytest.mark.usefixtures("_no_servers")
def test_a_port_in_use_gets_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        status, output = invoke("--out", str(tmp_path / "out"), "--port", str(port), "--", "m")
    assert status == 1
    assert f"Port {port} cannot be used" in output
    assert not (tmp_path / "out").exists()


def invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["ab", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, " ".join(result.output.split())
