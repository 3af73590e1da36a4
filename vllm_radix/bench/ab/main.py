# SPDX-License-Identifier: Apache-2.0
"""The command's work: check what the user gave, run it, report it."""

import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from vllm_radix import __version__
from vllm_radix.bench.ab import open_loop
from vllm_radix.bench.ab.arms import (
    ArmError,
    Stage,
    check_running,
    check_serve_arguments,
    parse_arm,
)
from vllm_radix.bench.ab.drive import ClosedLoop, Driver
from vllm_radix.bench.ab.open_loop import OpenLoop
from vllm_radix.bench.ab.results import ArmInfo, Results
from vllm_radix.bench.ab.rounds import Load, Rounds
from vllm_radix.bench.ab.view import View, table
from vllm_radix.bench.ab.workloads import WORKLOADS, is_workload, make_workload
from vllm_radix.bench.outcome import FAILED, INTERRUPTED, complain
from vllm_radix.bench.outputs import RESULTS, check_folder
from vllm_radix.bench.server import ServerError, require_free_port
from vllm_radix.bench.signals import terminable

_DEFAULT_BASE = "stock"


@dataclass(frozen=True)
class Settings:
    """What a user gave on the command line; see the command's help."""

    workload: str | None
    serve: Sequence[str]
    arms: Sequence[str]
    base: str | None
    rounds: int
    seed: int
    data: Path | None
    concurrency: int
    ignore_eos: bool
    session_ids: bool
    open_loop: str | None
    out: Path | None
    port: int | None
    start_timeout: float
    request_timeout: float


def run_and_report(settings: Settings, console: Console) -> int:
    """Measure and print; returns the exit status. What was measured is reported in any case."""
    try:
        rounds, results, folder = _plan(settings)
    except (ValueError, OSError, ServerError, ArmError) as error:
        complain(console, str(error))
        return FAILED
    file = folder / RESULTS
    status = 0
    try:
        with terminable(), View(console, results) as view:
            rounds.run(results, view, lambda: results.write(file))
    except KeyboardInterrupt:
        status = INTERRUPTED
        results.error = "interrupted"
    except (ServerError, ArmError, OSError, ValueError) as error:
        status = FAILED
        results.error = str(error).splitlines()[-1]
        complain(console, str(error))
    results.notes += _notes(results)
    results.write(file)
    if results.runs:
        from vllm_radix.bench.ab import report

        if any(run.is_complete for run in results.runs):
            console.print(table(results))
        for note in results.notes:
            console.print(escape(note), highlight=False)
        report.write(results, folder / "report.html")
        console.print(f"{folder / 'report.html'}, {file}", highlight=False, soft_wrap=True)
    if status == INTERRUPTED:
        console.print("[yellow]Interrupted: these are the results so far.[/]")
    return status


def _plan(settings: Settings) -> tuple[Rounds, Results, Path]:
    if find_spec("matplotlib") is None:
        raise ValueError("The report needs matplotlib: pip install 'vllm-radix[bench]'.")
    if settings.out is not None:
        check_folder(settings.out, "--out")
    arms = [parse_arm(text) for text in settings.arms]
    names = [arm.name for arm in arms]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"There are two arms {twice!r}: give each a name of its own.")
    base = settings.base or (_DEFAULT_BASE if _DEFAULT_BASE in names else names[0])
    if base not in names:
        raise ValueError(f"--base {base}: the arms are {', '.join(names)}.")
    if settings.serve and is_workload(settings.serve[0]):
        served = shlex.join(settings.serve[1:]) or "MODEL --max-model-len 8192"
        raise ValueError(
            f"{settings.serve[0]} is a workload, not a model: write vllm-radix ab "
            f"--workload {shlex.quote(settings.serve[0])} -- {served}."
        )
    check_serve_arguments(arms, settings.serve)
    if settings.port is not None:
        require_free_port(settings.port)
    now = datetime.now()
    folder = settings.out or Path(f"ab-{now:%Y%m%d-%H%M%S}")
    logs = folder / "logs"
    load, name, about, parameters = _load(settings, logs)
    # What cannot be made shall fail before the first server starts.
    num_calls = load.num_calls(settings.seed)
    check_running(arms)
    logs.mkdir(parents=True, exist_ok=True)
    images = isinstance(load, ClosedLoop) and load.workload.images
    stage = Stage(tuple(settings.serve), logs, settings.port, settings.start_timeout, images)
    results = Results(
        started=now.isoformat(" ", "seconds"),
        workload=name,
        about=about,
        parameters=parameters,
        arms=[ArmInfo(name=arm.name, what=stage.describe(arm)) for arm in arms],
        base=base,
        rounds=settings.rounds,
        environment=_environment(settings, num_calls),
    )
    return Rounds(arms, stage, load, settings.seed), results, folder


def _load(settings: Settings, logs: Path) -> tuple[Load, str, str, dict[str, object]]:
    """What is done with a server, its name, what it is in words, and its parameters."""
    if settings.open_loop is not None:
        if settings.workload is not None or settings.data is not None:
            raise ValueError(
                "--open-loop takes its requests from vllm bench serve: leave --workload and --data "
                "out, and name a dataset among its flags."
            )
        flags = tuple(shlex.split(settings.open_loop))
        open_loop.check_flags(flags)
        about = "requests that arrive at a rate of their own, sent by vllm bench serve"
        return OpenLoop(flags, logs), "open loop", about, {"flags": settings.open_loop}
    workload = make_workload(settings.workload or "agents", settings.data)
    driver = Driver(
        settings.concurrency, settings.request_timeout, settings.ignore_eos, settings.session_ids
    )
    parameters = workload.model_dump(mode="json")
    return ClosedLoop(workload, driver), workload.name, workload.about, parameters


def _environment(settings: Settings, num_calls: int | None) -> dict[str, str]:
    found = {
        "rounds": f"{settings.rounds}, with seeds from {settings.seed}",
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, {_gpus() or 'no NVIDIA GPU'}",
        "versions": f"vllm-radix {__version__}, Python {platform.python_version()}",
    }
    if num_calls is not None:
        answers = "full length" if settings.ignore_eos else "to the end that the model gives them"
        found["requests"] = (
            f"{num_calls} in each run, of at most {settings.concurrency} sessions at once; "
            f"answers {answers}{'; sent with session ids' if settings.session_ids else ''}"
        )
    return found


def _gpus() -> str:
    if shutil.which("nvidia-smi") is None:
        return ""
    listed = subprocess.run(("nvidia-smi", "-L"), capture_output=True, text=True, check=False)
    return ", ".join(line.partition(" (UUID")[0] for line in listed.stdout.splitlines())


def _notes(results: Results) -> list[str]:
    notes = []
    kept = sorted({run.arm for run in results.runs if run.cache.startswith("kept")})
    if kept:
        notes.append(
            f"The cache of {', '.join(kept)} was not empty at the start of the runs. The texts of "
            "generated workloads are new in each round, but what is cached competes for space."
        )
    notes += _cut(results)
    stopped = [f"{run.arm} in round {run.round}" for run in results.runs if not run.is_complete]
    if stopped:
        notes.append(f"Not complete, and in no figure: {', '.join(stopped)}.")
    return notes


def _cut(results: Results) -> list[str]:
    """Whether sessions ended early, and what to do about it."""
    runs = [run for run in results.runs if run.is_complete]
    if not any(run.cut_sessions for run in runs):
        return []
    # Seeds differ in it, and so may arms, if their answers differ in length.
    cut = _of_each([run.cut_sessions for run in runs], [run.num_sessions for run in runs])
    missing = _of_each(
        [run.num_calls - len(run.requests) for run in runs], [run.num_calls for run in runs]
    )
    return [
        f"In each run, {cut} sessions ended early, at the model's context length, so that "
        f"{missing} calls were not answered: {WORKLOADS[results.workload].how_to_fit()}."
    ]


def _of_each(parts: Sequence[int], wholes: Sequence[int]) -> str:
    return f"{_range(parts)} of {_range(wholes)}"


def _range(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low} to {high}"
