# SPDX-License-Identifier: Apache-2.0
"""A decode step: one token for each of many running requests."""

from collections.abc import Iterable

from vllm.v1.request import Request

from benchmarks.micro.contenders import BLOCK_SIZE, Contender, as_received, both, random_tokens
from benchmarks.micro.figures import Figure, share_of_stock
from benchmarks.micro.timing import interleaved, timed

_PROMPT_TOKENS = 512


def decode(num_requests: int, rounds: int) -> list[Figure]:
    """Figures for a step in which ``num_requests`` requests decode.

    Their lengths differ, so that in each step one in ``BLOCK_SIZE`` of them fills a block.
    """
    blocks_per_request = (_PROMPT_TOKENS + rounds) // BLOCK_SIZE + 4
    contenders = both(num_requests * blocks_per_request + 1024, num_requests)
    for contender in contenders:
        for number in range(num_requests):
            tokens = random_tokens(_PROMPT_TOKENS + number % BLOCK_SIZE, number)
            contender.arrive(as_received(tokens), max_tokens=rounds + 1000)
        while any(r.is_prefill_chunk or not r.num_output_tokens for r in _requests(contender)):
            contender.step()
    medians = interleaved(contenders, rounds, _decode)
    figures = []
    for name, of in medians.items():
        target = share_of_stock(1.05) if name == "one step" else None
        figures.append(Figure(name, of["ours"], of["stock"], target))
    return figures


def _requests(contender: Contender) -> Iterable[Request]:
    return contender.scheduler.requests.values()


def _decode(contender: Contender, round_: int) -> dict[str, float]:
    scheduler = contender.scheduler
    schedule, step = timed(scheduler.schedule)
    assert step.total_num_scheduled_tokens == len(scheduler.running)
    sampled = contender.sampled(step)
    update, _ = timed(lambda: scheduler.update_from_output(step, sampled))
    return {
        "one step": schedule + update,
        "of it schedule()": schedule,
        "of it update_from_output()": update,
    }
