# SPDX-License-Identifier: Apache-2.0
"""What a replay found, as figures."""

from collections.abc import Sequence
from statistics import mean

import numpy as np
from pydantic import BaseModel

from vllm_radix.bench.replay.engine import Replay


class Run(BaseModel):
    """One workload on one scheduler with one capacity. Times are virtual unless it says real."""

    scheduler: str
    capacity: int
    """Tokens of KV cache."""
    seed: int | None
    num_requests: int
    num_finished: int
    """Fewer than ``num_requests`` if the run was stopped."""
    hit_rate: float
    """Prompt tokens that were found in the cache, divided by prompt tokens. Each request counts
    once, with what its first admission found; what it finds after a preemption does not count."""
    makespan: float
    """Seconds from the start to the last answer."""
    ttft_p50: float
    ttft_p90: float
    ttft_p99: float
    ttft_max: float
    """Seconds from a request's arrival to its first token."""
    throughput: float
    """Prompt and answer tokens of finished requests per second."""
    scheduler_ms_p50: float
    scheduler_ms_p99: float
    """Real milliseconds that the scheduler took for a step."""
    num_steps: int
    evicted_blocks: float | None
    """None if the scheduler's block pool is of an unknown kind."""
    preemptions: float

    @property
    def is_complete(self) -> bool:
        return self.num_finished == self.num_requests


class Bounds(BaseModel):
    """What a cache of this capacity could have reached in the order of one run's arrivals."""

    capacity: int
    seed: int | None
    order_of: str
    """The scheduler of that run."""
    unlimited: float
    clairvoyant: float


def summarise(replay: Replay, scheduler: str, capacity: int, seed: int | None) -> Run | None:
    """The figures of a run as far as it went; None if nothing has been answered yet."""
    admitted = [record for record in replay.records if record.first_token is not None]
    if not admitted:
        return None
    ttft = np.percentile(
        [record.ttft for record in admitted if record.ttft is not None], [50, 90, 99, 100]
    )
    steps = np.percentile(replay.step_seconds, [50, 99]) * 1000
    finished = [record.call for record in admitted if record.finish is not None]
    return Run(
        scheduler=scheduler,
        capacity=capacity,
        seed=seed,
        num_requests=replay.workload.num_requests,
        num_finished=replay.num_finished,
        hit_rate=sum(record.num_cached_tokens for record in admitted)
        / sum(len(record.call.prompt) for record in admitted),
        makespan=replay.now,
        ttft_p50=ttft[0],
        ttft_p90=ttft[1],
        ttft_p99=ttft[2],
        ttft_max=ttft[3],
        throughput=sum(call.num_tokens for call in finished) / replay.now,
        scheduler_ms_p50=steps[0],
        scheduler_ms_p99=steps[1],
        num_steps=len(replay.step_seconds),
        evicted_blocks=replay.evictions.num_blocks,
        preemptions=sum(record.num_preemptions for record in replay.records),
    )


def mean_run(runs: Sequence[Run]) -> Run:
    """The means over the seeds of runs that are otherwise alike."""
    values = {}
    for name in Run.model_fields:
        of_runs = [getattr(run, name) for run in runs]
        is_figure = name not in ("scheduler", "capacity", "seed") and of_runs[0] is not None
        values[name] = mean(of_runs) if is_figure else of_runs[0]
    values["seed"] = None
    return Run.model_construct(**values)
