# SPDX-License-Identifier: Apache-2.0
"""What a scheduler step costs while many long requests wait, and while none does: ours and stock.

    python -m benchmarks.waiting

Both schedulers run side by side, a step of the one after a step of the other; no model runs. Half
of the waiting prompts share a prefix of half their length.
"""

import gc
import logging
import os
import random
import time
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

CASES = ((32, 0), (32, 1000))
"""Numbers of running and of waiting requests."""
PROMPT_TOKENS = 32_768
VOCABULARY = 30_000
BLOCK_SIZE = 16
NUM_BLOCKS = 20_000
STEPS = 300
WARM_UP = 5


class Contender:
    """A scheduler that has requests running and waiting."""

    def __init__(self, name: str, num_running: int, num_waiting: int) -> None:
        self.name = name
        self.times: list[float] = []
        self.scheduler = build_scheduler(
            parse_scheduler(name), Limits(BLOCK_SIZE), NUM_BLOCKS, 200_000
        )
        self._hasher = block_hasher(self.scheduler, BLOCK_SIZE)
        rng = random.Random(1)
        # All prompts share these objects, which saves memory.
        ids = list(range(VOCABULARY))
        common = rng.choices(ids, k=PROMPT_TOKENS // 2)
        for number in range(num_running):
            self._add(f"running {number}", rng.choices(ids, k=64))
        for _ in range(WARM_UP):
            self.step()
        for number in range(num_waiting):
            beginning = common if number % 2 else []
            rest = rng.choices(ids, k=PROMPT_TOKENS - len(beginning))
            self._add(f"waiting {number}", beginning + rest)
        self.times.clear()

    def _add(self, name: str, prompt: list[int]) -> None:
        request = Request(
            request_id=name,
            prompt_token_ids=prompt,
            sampling_params=SamplingParams(max_tokens=100_000, ignore_eos=True),
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


def main() -> None:
    """Print the table."""
    table = Table(title="Scheduler time of a step, milliseconds")
    for column in ("running", "waiting", "stock median", "radix median", "ratio", "radix p90"):
        table.add_column(column, justify="right")
    for num_running, num_waiting in CASES:
        stock, ours = (Contender(name, num_running, num_waiting) for name in ("stock", "radix"))
        gc.collect()
        gc.freeze()
        for _ in range(STEPS):
            stock.step()
            ours.step()
        gc.unfreeze()
        table.add_row(
            f"{num_running}",
            f"{num_waiting:,}",
            f"{median(stock.times):.2f}",
            f"{median(ours.times):.2f}",
            f"{median(ours.times) / median(stock.times):.2f}",
            f"{quantiles(ours.times, n=10)[-1]:.2f}",
        )
    Console(width=90).print(table)


if __name__ == "__main__":
    main()
