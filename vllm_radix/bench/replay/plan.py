# SPDX-License-Identifier: Apache-2.0
"""Which workloads run on which schedulers with which capacities."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.progress import Progress, TaskID

from vllm_radix.bench.replay.bounds import BoundFinder
from vllm_radix.bench.replay.cost import CostModel
from vllm_radix.bench.replay.engine import Replay
from vllm_radix.bench.replay.names import split_options
from vllm_radix.bench.replay.report import Report
from vllm_radix.bench.replay.results import Bounds, summarise
from vllm_radix.bench.replay.schedulers import Limits, SchedulerChoice, build_scheduler
from vllm_radix.bench.replay.sessions import Workload
from vllm_radix.bench.replay.traces import FORMATS, TraceOptions, read_trace
from vllm_radix.bench.replay.workloads import GENERATORS, make_generator

PROGRESS_EVERY = 10
"""Requests between two updates of the progress bar."""


@dataclass(frozen=True)
class Plan:
    """What to replay on what."""

    workloads: Sequence[tuple[int | None, Workload]]
    """With their seeds; None for a trace, which has none."""
    schedulers: Sequence[SchedulerChoice]
    capacities: Sequence[int]
    limits: Limits
    cost: CostModel
    session_ids: bool = False

    def run(self, report: Report, progress: Progress, on_run: Callable[[], None]) -> None:
        """Fill ``report``, with the run that is stopped, if one is, as the last.

        Args:
            on_run: called after each run.

        Raises:
            StuckError: a scheduler does not serve the requests.
        """
        num_runs = len(self.workloads) * len(self.capacities) * len(self.schedulers)
        for seed, workload in self.workloads:
            for capacity in self.capacities:
                for scheduler in self.schedulers:
                    label = f"{len(report.runs) + 1}/{num_runs} {scheduler.label}, {capacity:,}"
                    if seed is not None:
                        label += f", seed {seed}"
                    task = progress.add_task(label, total=workload.num_requests)
                    self._run_one(report, seed, workload, capacity, scheduler, progress, task)
                    on_run()

    def _run_one(
        self,
        report: Report,
        seed: int | None,
        workload: Workload,
        capacity: int,
        choice: SchedulerChoice,
        progress: Progress,
        task: TaskID,
    ) -> None:
        def show(num_finished: int) -> None:
            if num_finished % PROGRESS_EVERY == 0 or num_finished == workload.num_requests:
                progress.update(task, completed=num_finished)

        scheduler = build_scheduler(
            choice,
            self.limits,
            capacity // self.limits.block_size,
            # One more than needed: the length at which vLLM would cut an answer short.
            workload.max_tokens + 1,
        )
        replay = Replay(workload, scheduler, self.cost, self.session_ids, show)
        try:
            replay.run()
        finally:
            run = summarise(replay, choice.label, capacity, seed)
            if run is not None:
                report.runs.append(run)
        if choice is self.schedulers[0]:
            bounds = BoundFinder([record.call for record in replay.records])
            report.bounds.append(
                Bounds(
                    capacity=capacity,
                    seed=seed,
                    order_of=choice.label,
                    unlimited=bounds.unlimited(),
                    clairvoyant=bounds.clairvoyant(capacity),
                )
            )


def load_workloads(
    text: str, seeds: Sequence[int], options: TraceOptions
) -> list[tuple[int | None, Workload]]:
    """The workload of each seed, or the trace at a path.

    Args:
        text: the path of a trace, or the name of a generator, with parameters as
            ``agents:{"sessions": 50}``.
        seeds: for generators, which take 0 if there is none; traces take none.
        options: for traces, which alone take any.

    Raises:
        ValueError: there is no such workload or file, or it is malformed, in one sentence.
    """
    path = Path(text)
    if path.exists():
        if seeds:
            raise ValueError(f"{text} is a trace, the same for every seed: leave --seed out.")
        workload = read_trace(path, options)
        if not workload.num_requests:
            raise ValueError(f"{text} holds no requests.")
        return [(None, workload)]
    name, parameters = split_options(text)
    if name not in GENERATORS:
        raise ValueError(
            f"There is no workload or file {text!r}: give {', '.join(GENERATORS)}, or the path of "
            f"a trace ({FORMATS})."
        )
    generator = make_generator(name, parameters)
    if options != TraceOptions():
        raise ValueError(
            f"Options for traces do not apply to {name!r}: give its parameters, as "
            f'{name}:{{"{next(iter(type(generator).model_fields))}": 10}}.'
        )
    return [(seed, generator.generate(seed)) for seed in seeds or (0,)]


def choose_capacities(
    workloads: Sequence[tuple[int | None, Workload]], asked: Sequence[int], block_size: int
) -> list[int]:
    """The capacities in tokens: those asked for, or an eighth, a quarter and a half of all tokens.

    Raises:
        ValueError: one of them does not hold the longest request.
    """
    longest = max(workload.max_tokens for _, workload in workloads)
    least = -(-longest // block_size) * block_size
    for capacity in asked:
        if capacity < least:
            raise ValueError(
                f"The longest request has {longest} tokens, so the capacity must be at least "
                f"{least}, not {capacity}."
            )
    if asked:
        return sorted(set(asked))
    footprint = BoundFinder(list(workloads[0][1].calls())).footprint
    return sorted({max(footprint // share // 1000 * 1000, least) for share in (8, 4, 2)})
