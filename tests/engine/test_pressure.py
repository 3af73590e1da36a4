# SPDX-License-Identifier: Apache-2.0
"""Pools so small that cached blocks are evicted and running requests preempted."""

import random
from typing import Any

import pytest

from .conftest import EngineFactory
from .engines import Ask, Kind, assert_same, in_order_of_arrival, one_by_one
from .prompts import tokens

pytestmark = pytest.mark.engine

# 23 usable blocks of 16 tokens: one block is vLLM's null block.
SMALL_POOL: dict[str, Any] = {"block_size": 16, "num_gpu_blocks_override": 24, "max_model_len": 320}
BLOCKS = 23


def _growing(count: int) -> list[Ask]:
    """Requests whose answers outgrow the small pool when several run."""
    base = tokens("pressure", 40)
    return [Ask(base + tokens(i, 5 + 3 * i), max_tokens=50 + i) for i in range(count)]


@pytest.mark.parametrize("chunk", [2048, 24])
def test_preempted_and_resumed(engine: EngineFactory, ours: Kind, chunk: int) -> None:
    """Preempted requests give the answers that they would have given."""
    asks = _growing(10)
    expected = engine("off", block_size=16).run(asks)
    radix = engine(ours, **SMALL_POOL, max_num_batched_tokens=chunk)
    assert_same(expected, radix.run(asks))
    assert radix.totals.preemptions > 0
    assert_same(expected, radix.run(asks[::-1])[::-1])


def test_a_preempted_request_counts_once(engine: EngineFactory, ours: Kind) -> None:
    """Lookups of resumed requests are kept apart from the hit rate, and do find their prefixes."""
    asks = [Ask(tokens(i, 100), max_tokens=60) for i in range(6)]
    radix = engine(ours, **SMALL_POOL)
    radix.run(asks)
    assert radix.totals.preemptions > 0
    assert (radix.totals.requests, radix.totals.queries) == (6, 600)
    assert radix.totals.hits == 0, "these prompts share nothing"
    assert radix.totals.preempted_requests >= 1
    assert radix.totals.preempted_hits > 0, "a resumed request found nothing of its own prefix"


def test_preempted_time_and_again(engine: EngineFactory, ours: Kind) -> None:
    """Two requests that need 18 blocks each in a pool of 23 keep taking turns."""
    asks = [Ask(tokens(i, 17), max_tokens=270) for i in range(3)]
    expected = engine("off", block_size=16).run(asks)
    radix = engine(ours, **SMALL_POOL)
    assert_same(expected, radix.run(asks))
    assert radix.totals.preemptions >= 2


def test_parallel_sampling_preempted(engine: EngineFactory, ours: Kind) -> None:
    """Continuations that share their prompt's blocks survive the preemption of one another."""
    ask = Ask(tokens("n", 70), n=5, temperature=1.0, seed=3, max_tokens=80)
    expected = engine("off", block_size=16).run([ask])
    radix = engine(ours, **SMALL_POOL, additional_config=in_order_of_arrival(ours))
    assert_same(expected, radix.run([ask]))
    assert radix.totals.preemptions > 0


def test_a_prompt_that_fills_the_pool(engine: EngineFactory, ours: Kind) -> None:
    """Requests that need almost the whole pool, one after the other and queued together."""
    asks = [Ask(tokens(i % 3, 300), max_tokens=16) for i in range(6)]
    expected = engine("off", block_size=16).run(asks)
    radix = engine(ours, **SMALL_POOL)
    assert_same(expected, radix.run(asks))
    assert_same(expected, radix.run(asks, one_by_one(asks)))


def test_the_oldest_prefix_goes_first(engine: EngineFactory) -> None:
    """Three cached prefixes of seven blocks, one used again: a fourth takes another's place."""
    prompts = [tokens(i, 7 * 16) for i in range(4)]
    radix = engine("blocks", **SMALL_POOL)

    def cached(i: int) -> int | None:
        ask = Ask((*prompts[i], 5), max_tokens=1)
        return radix.run([ask])[0].cached

    assert [cached(0), cached(1), cached(2)] == [0, 0, 0]
    assert cached(0) == 7 * 16
    assert cached(3) == 0
    assert [cached(0), cached(2)] == [7 * 16, 7 * 16]
    # The new prefix and its next token need 8 blocks and 2 were free: the oldest lost 6 of 7.
    assert cached(1) == 16


@pytest.mark.parametrize("seed", range(3))
def test_random_requests_under_pressure(engine: EngineFactory, ours: Kind, seed: int) -> None:
    """Requests of mixed lengths arriving at random, four times what the pool can hold."""
    rng = random.Random(seed)
    parts = [tokens(f"{seed}/{i}", rng.randrange(10, 50)) for i in range(5)]
    asks = [
        Ask(
            sum((rng.choice(parts) for _ in range(rng.randrange(1, 5))), ())
            + tokens(f"{seed}:{i}", rng.randrange(1, 9)),
            max_tokens=rng.randrange(1, 70),
        )
        for i in range(40)
    ]
    arrivals = sorted(rng.randrange(200) for _ in asks)
    expected = engine("off", block_size=16).run(asks)
    radix = engine(ours, **SMALL_POOL, max_num_batched_tokens=rng.choice([32, 70, 512]))
    assert_same(expected, radix.run(asks, arrivals))
    assert radix.totals.hits > 0
