# SPDX-License-Identifier: Apache-2.0
"""The command's work: check what the user gave, run the arms, judge, report."""

import os
import platform
import time
from collections.abc import Mapping
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from vllm_radix import __version__, compat
from vllm_radix.bench.outcome import FAILED, INTERRUPTED, complain
from vllm_radix.bench.outputs import RESULTS, check_folder
from vllm_radix.bench.parity import arms
from vllm_radix.bench.parity.compare import compare, judge
from vllm_radix.bench.parity.plan import (
    Settings,
    find_model,
    find_tasks,
    parse_model_args,
    require_lm_eval,
)
from vllm_radix.bench.parity.results import Job, Results
from vllm_radix.bench.parity.run import run_arm
from vllm_radix.bench.parity.view import show
from vllm_radix.bench.server import ServerError
from vllm_radix.bench.signals import terminable


def run_and_report(settings: Settings, console: Console) -> int:
    """Run and print; returns the exit status. What was found is reported in any case."""
    try:
        with console.status("Looking up the tasks"):
            jobs, results, folder = _plan(settings)
    except (ValueError, OSError, compat.UnsupportedVllmError) as error:
        complain(console, str(error))
        return FAILED
    file = folder / RESULTS
    status = 0
    try:
        with terminable():
            for name, job in jobs.items():
                _run(name, job, results, folder, console)
                results.write(file)
        _compare(results)
        status = FAILED if results.failures else 0
    except KeyboardInterrupt:
        status = INTERRUPTED
        results.error = "interrupted"
    except (ServerError, OSError, ValueError) as error:
        status = FAILED
        results.error = str(error).splitlines()[-1]
        complain(console, str(error))
    results.write(file)
    show(console, results)
    if status == INTERRUPTED:
        console.print("[yellow]Interrupted: these are the results so far.[/]")
    console.print(str(file), highlight=False, soft_wrap=True)
    return status


def _plan(settings: Settings) -> tuple[Mapping[str, Job], Results, Path]:
    if settings.out is not None:
        check_folder(settings.out, "--out")
    require_lm_eval()
    compat.require_supported_vllm()
    model = find_model(settings.model)
    model_args = parse_model_args(settings.model_args)
    given = {arm.name: arms.arm_args(arm, model, model_args, settings.stress) for arm in arms.ARMS}
    tasks = find_tasks(settings.tasks, settings.include_path)
    jobs = {
        name: Job(
            model_args=args,
            tasks=tasks,
            include_path=settings.include_path,
            limit=settings.limit,
            num_fewshot=settings.num_fewshot,
            apply_chat_template=settings.apply_chat_template,
        )
        for name, args in given.items()
    }
    now = datetime.now()
    results = Results(
        started=now.isoformat(" ", "seconds"),
        model=settings.model,
        tasks=tasks,
        stress=settings.stress,
        environment={
            "machine": f"{platform.machine()}, {os.cpu_count()} CPUs",
            "versions": f"vllm-radix {__version__}, vLLM {compat.vllm_version()}, "
            f"lm-eval {version('lm-eval')}, Python {platform.python_version()}",
        },
    )
    return jobs, results, settings.out or Path(f"parity-{now:%Y%m%d-%H%M%S}")


def _run(name: str, job: Job, results: Results, folder: Path, console: Console) -> None:
    started = time.monotonic()
    with console.status(name) as status:

        def progress(line: str) -> None:
            passed = time.monotonic() - started
            text = f"{name}, {passed:.0f} s: {line}"[: console.width - 3]
            status.update(escape(text))

        arm = run_arm(name, job, folder / "logs", progress)
    results.arms.append(arm)
    console.print(
        f"{name}: {arm.num_generated} generated answers, hit rate {arm.counts.hit_rate:.3f}, "
        f"{time.monotonic() - started:.0f} s",
        highlight=False,
    )


def _compare(results: Results) -> None:
    reference, stock, radix = results.arms
    of_stock, of_radix = compare(reference, stock), compare(reference, radix)
    results.comparisons = [of_stock, of_radix]
    results.failures = judge(of_stock, of_radix, radix, results.stress)
