# SPDX-License-Identifier: Apache-2.0
"""``vllm-radix parity`` from the command line, with arms that have no model."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from vllm_radix.bench.parity import main, plan
from vllm_radix.bench.parity.results import ArmResult, Job, Results
from vllm_radix.bench.server import ServerError
from vllm_radix.cli import app

from .samples import ANSWERS, arm, task

Arm = Callable[[], ArmResult]
ONE_WRONG = ("Rome", "Oslo [in] Norway", *ANSWERS[2:])


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model, in a place where lm-eval is installed and knows every task."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    monkeypatch.setattr(main, "require_lm_eval", lambda: None)
    monkeypatch.setattr(main, "find_tasks", lambda names, include_path: names.split(","))
    monkeypatch.setattr(main, "version", lambda name: "1.2.3")
    return tmp_path / "model"


def parity(monkeypatch: pytest.MonkeyPatch, model: Path, *options: str, **arms: Arm) -> Result:
    """Run the command with arms that give these results."""

    def run_arm(name: str, job: Job, folder: Path, show: object) -> ArmResult:
        assert job.model_args["pretrained"] == str(model)
        return arms[name.replace("-", "_")]()

    monkeypatch.setattr(main, "run_arm", run_arm)
    out = ("--out", str(model.parent / "out"), "--model-args", '{"max_model_len": 512}')
    return CliRunner().invoke(app, ["parity", str(model), "--tasks", "cities", *out, *options])


def read(model: Path) -> Results:
    return Results.model_validate_json((model.parent / "out" / "results.json").read_text())


def text(result: Result) -> str:
    return " ".join(result.output.split())


def test_parity(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = parity(
        monkeypatch,
        model,
        no_cache=lambda: arm("no-cache", hits=0),
        stock=lambda: arm("stock", *ONE_WRONG),
        radix=lambda: arm("radix"),
    )
    assert result.exit_code == 0, result.output
    assert "Parity: of 5 generated answers 0 differ from those without a cache" in text(result)
    assert "stock: samples that differ from no-cache" in text(result)
    assert "'Oslo [in] Norway'" in text(result)
    results = read(model)
    assert [one.arm for one in results.arms] == ["no-cache", "stock", "radix"]
    assert results.failures == []
    assert results.comparisons[0].differences[0].answer == "Oslo [in] Norway"


def test_more_differences_than_stock(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = parity(
        monkeypatch,
        model,
        no_cache=lambda: arm("no-cache", hits=0),
        stock=lambda: arm("stock"),
        radix=lambda: arm("radix", *ONE_WRONG),
    )
    assert result.exit_code == 1
    assert "Answers differ from those without a cache in 1 of 5" in text(result)
    assert "radix: samples that differ from no-cache" in text(result)
    assert len(read(model).failures or ()) == 1


def test_log_likelihood_tasks_are_marked(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def choices() -> dict[str, ArmResult]:
        return {"choices": task(*ANSWERS, output_type="multiple_choice")}  # type: ignore[dict-item]

    result = parity(
        monkeypatch,
        model,
        no_cache=lambda: arm("no-cache", hits=0, **choices()),
        stock=lambda: arm("stock", **choices()),
        radix=lambda: arm("radix", **choices()),
    )
    assert result.exit_code == 0, result.output
    assert "choices *" in text(result)
    assert "for which vLLM does not read the prefix cache: no evidence" in text(result)


def test_an_arm_that_fails_keeps_those_before_it(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> ArmResult:
        raise ServerError("a line of the log\nThe evaluation ended with exit code 1, see [log].")

    result = parity(
        monkeypatch,
        model,
        no_cache=lambda: arm("no-cache", hits=0),
        stock=lambda: arm("stock"),
        radix=fail,
    )
    assert result.exit_code == 1
    assert "The evaluation ended with exit code 1, see [log]." in text(result)
    assert "exact_match,none" in text(result)
    results = read(model)
    assert [one.arm for one in results.arms] == ["no-cache", "stock"]
    assert results.error == "The evaluation ended with exit code 1, see [log]."
    assert results.failures is None


def test_ctrl_c_keeps_the_results(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> ArmResult:
        raise KeyboardInterrupt

    result = parity(monkeypatch, model, no_cache=lambda: arm("no-cache", hits=0), stock=interrupt)
    assert result.exit_code == 130
    assert "Interrupted: these are the results so far." in text(result)
    assert [one.arm for one in read(model).arms] == ["no-cache"]


def test_stress_is_for_all_arms(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    def run_arm(name: str, job: Job, folder: Path, show: object) -> ArmResult:
        given.append(job.model_args)
        return arm(name)

    monkeypatch.setattr(main, "run_arm", run_arm)
    options = ("--model-args", '{"max_model_len": 512}', "--stress", "--limit", "7")
    out = ("--out", str(model.parent / "out"))
    result = CliRunner().invoke(app, ["parity", str(model), *options, *out])
    assert result.exit_code == 0, result.output
    assert [args["num_gpu_blocks_override"] for args in given] == [33, 33, 33]
    assert read(model).stress


def test_an_earlier_run_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("hours of work")
    result = CliRunner().invoke(app, ["parity", "model", "--out", str(tmp_path)])
    assert result.exit_code == 1
    assert f"--out: {tmp_path} holds the results of an earlier run" in text(result)
    assert (tmp_path / "results.json").read_text() == "hours of work"


def test_a_missing_model_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "require_lm_eval", lambda: None)
    missing, out = tmp_path / "missing", tmp_path / "out"
    result = CliRunner().invoke(app, ["parity", str(missing), "--out", str(out)])
    assert result.exit_code == 1
    assert f"No model in {missing}: name a folder" in text(result)
    assert not out.exists()


def test_without_lm_eval_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "find_spec", lambda name: None)
    result = CliRunner().invoke(app, ["parity", "model", "--out", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert text(result) == "Tasks are run by lm-eval: pip install 'vllm-radix[eval]'."
