# SPDX-License-Identifier: Apache-2.0
"""The command's work: check what the user gave, replay it, report it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from vllm_radix import __version__, compat
from vllm_radix.bench.outcome import FAILED, INTERRUPTED
from vllm_radix.bench.outputs import check_file
from vllm_radix.bench.replay.cost import CostModel
from vllm_radix.bench.replay.engine import StuckError
from vllm_radix.bench.replay.names import parse_counts
from vllm_radix.bench.replay.plan import Plan, choose_capacities, load_workloads
from vllm_radix.bench.replay.report import Report, plot_suffixes
from vllm_radix.bench.replay.schedulers import Limits, parse_scheduler
from vllm_radix.bench.replay.traces import TraceOptions


@dataclass(frozen=True)
class Settings:
    """What a user gave on the command line; see the command's help."""

    workload: str
    schedulers: Sequence[str]
    capacity: str
    block_size: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    seeds: Sequence[int]
    session_ids: bool
    json_file: Path | None
    png_file: Path | None
    trace: TraceOptions
    cost: CostModel


def replay_and_report(settings: Settings, console: Console) -> int:
    """Replay and print; returns the exit status. What was replayed is reported in any case."""
    try:
        with console.status("Reading the workload"):
            plan = _plan(settings)
    except ValueError as error:
        _complain(console, error)
        return FAILED
    report = _empty_report(settings, plan)
    status = 0
    try:
        with _progress(console) as progress:
            plan.run(report, progress, lambda: _write_json(settings, report))
    except KeyboardInterrupt:
        status = INTERRUPTED
    except (StuckError, ValueError, OSError) as error:
        _complain(console, error)
        status = FAILED
    if report.runs:
        console.print(report.table())
        status = _write_files(settings, report, console) or status
    if status == INTERRUPTED:
        console.print("[yellow]Interrupted: these are the results so far.[/]")
    return status


def _plan(settings: Settings) -> Plan:
    if settings.json_file is not None:
        check_file(settings.json_file, "--json")
    if settings.png_file is not None:
        if find_spec("matplotlib") is None:
            raise ValueError("--png needs matplotlib: pip install 'vllm-radix[bench]'.")
        check_file(settings.png_file, "--png", plot_suffixes())
    if settings.max_num_batched_tokens < settings.max_num_seqs:
        raise ValueError(
            f"--max-num-batched-tokens {settings.max_num_batched_tokens} is below --max-num-seqs "
            f"{settings.max_num_seqs}: every sequence needs a token in each step, so raise the one "
            "or lower the other."
        )
    schedulers = [parse_scheduler(text) for text in settings.schedulers]
    asked = parse_counts(settings.capacity) if settings.capacity else []
    workloads = load_workloads(settings.workload, settings.seeds, settings.trace)
    limits = Limits(
        settings.block_size or workloads[0][1].block_size,
        settings.max_num_seqs,
        settings.max_num_batched_tokens,
    )
    capacities = choose_capacities(workloads, asked, limits.block_size)
    return Plan(workloads, schedulers, capacities, limits, settings.cost, settings.session_ids)


def _empty_report(settings: Settings, plan: Plan) -> Report:
    first = plan.workloads[0][1]
    return Report(
        workload=first.name,
        num_requests=first.num_requests,
        num_prompt_tokens=sum(len(call.prompt) for call in first.calls()),
        settings={
            "workload": settings.workload,
            "trace": asdict(settings.trace),
            "session_ids": settings.session_ids,
            **asdict(plan.limits),
            "cost_seconds": asdict(plan.cost),
            "vllm": compat.vllm_version(),
            "vllm_radix": __version__,
        },
    )


def _write_json(settings: Settings, report: Report) -> None:
    if settings.json_file is not None:
        report.write_json(settings.json_file)


def _write_files(settings: Settings, report: Report, console: Console) -> int:
    """Returns the exit status: what is printed already is not lost with a full disk."""
    try:
        _write_json(settings, report)
        if settings.png_file is not None:
            report.write_plot(settings.png_file)
    except OSError as error:
        _complain(console, error)
        return FAILED
    return 0


def _complain(console: Console, error: Exception) -> None:
    console.print(f"[red]{escape(str(error))}[/]", highlight=False)


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
