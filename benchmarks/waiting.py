# SPDX-License-Identifier: Apache-2.0
"""What a scheduler step costs while many long requests wait, and while none does: ours and stock.

    python -m benchmarks.waiting

Both schedulers run side by side, a step of the one after a step of the other; no model runs. Half
of the waiting prompts share a prefix of half their length. In the last case, each step starts as
many requests as may run, and they end with it.
"""

import gc
import logging
import os
import random
import time
from dataclasses import dataclass
from statistics import median, quantiles

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from rich.console import Console
from rich.table import Table
from vllm.sampling_params import SamplingParams
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from vllm_radix.bench.replay.schedulers import (
    Limits,
    block_hasher,
    build_scheduler,
    parse_scheduler,
)

logging.getLogger("vllm").setLevel(logging.ERROR)


@dataclass(frozen=True)
class Case:
    """Requests that run all the time, and requests that wait, with prompts of so many tokens."""

    num_running: int
    num_waiting: int
    prompt_tokens: int = 32_768
    num_started: int = 0
    """How many of the waiting ones start in each step, and are followed by as many others."""


CASES = (Case(32, 0), Case(32, 1000), Case(0, 1000, prompt_tokens=256, num_started=32))
VOCABULARY = 30_000
BLOCK_SIZE = 16
NUM_BLOCKS = 20_000
STEPS = 300
WARM_UP = 5


class Contender:
    """A scheduler that has requests running and waiting."""

    def __init__(self, name: str, case: Case) -> None:
        self.name = name
        self.times: list[float] = []
        limits = Limits(
            BLOCK_SIZE, max_num_seqs=case.num_started or Limits(BLOCK_SIZE).max_num_seqs
        )
        self.scheduler = build_scheduler(parse_scheduler(name), limits, NUM_BLOCKS, 200_000)
        self._case = case
        self._hasher = block_hasher(self.scheduler, BLOCK_SIZE)
        self._rng = random.Random(1)
        # All prompts share these objects, which saves memory.
        self._ids = list(range(VOCABULARY))
        self._common = self._tokens(case.prompt_tokens // 2)
        self._num_added = 0
        for _ in range(case.num_running):
            self._add(self._tokens(64))
        for _ in range(WARM_UP):
            self.step()
        self._queue_up(case.num_waiting)
        self.times.clear()

    def _tokens(self, number: int) -> list[int]:
        return self._rng.choices(self._ids, k=number)

    def _queue_up(self, number: int) -> None:
        for place in range(number):
            beginning = self._common if place % 2 else []
            self._add(beginning + self._tokens(self._case.prompt_tokens - len(beginning)))

    def _add(self, prompt: list[int]) -> None:
        self._num_added += 1
        max_tokens = 1 if self._case.num_started else 100_000
        request = Request(
            request_id=f"{self._num_added}",
            prompt_token_ids=prompt,
            sampling_params=SamplingParams(max_tokens=max_tokens, ignore_eos=True),
            pooling_params=None,
            block_hasher=self._hasher,
        )
        self.scheduler.add_request(request)

    def step(self) -> None:
        """One step, of which only the scheduler's part is timed."""
        started = time.perf_counter()
        scheduled = self.scheduler.schedule()
        took = time.perf_counter() - started
        names = list(scheduled.num_scheduled_tokens)
        requests = [self.scheduler.requests[name] for name in names]
        output = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: row for row, name in enumerate(names)},
            sampled_token_ids=[
                [1] if request.num_computed_tokens >= request.num_tokens else []
                for request in requests
            ],
        )
        started = time.perf_counter()
        self.scheduler.update_from_output(scheduled, output)
        self.times.append(1000 * (took + time.perf_counter() - started))
        self._queue_up(min(self._case.num_started, len(names)))


def main() -> None:
    """Print the table."""
    table = Table(title="Scheduler time of a step, milliseconds")
    columns = ("running", "waiting", "their tokens", "started a step")
    for column in (*columns, "stock median", "radix median", "ratio", "radix p90"):
        table.add_column(column, justify="right")
    for case in CASES:
        stock, ours = (Contender(name, case) for name in ("stock", "radix"))
        gc.collect()
        gc.freeze()
        for _ in range(STEPS):
            stock.step()
            ours.step()
        gc.unfreeze()
        table.add_row(
            f"{case.num_running}",
            f"{case.num_waiting:,}",
            f"{case.prompt_tokens:,}",
            f"{case.num_started}",
            f"{median(stock.times):.2f}",
            f"{median(ours.times):.2f}",
            f"{median(ours.times) / median(stock.times):.2f}",
            f"{quantiles(ours.times, n=10)[-1]:.2f}",
        )
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
