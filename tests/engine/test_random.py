# SPDX-License-Identifier: Apache-2.0
"""Many random requests built from few fragments, so that prefixes part and meet everywhere."""

import random
from typing import Any

import pytest

from .conftest import Comparison, EngineFactory, cached
from .engines import Ask, Kind, assert_same, ideal_reuse, one_by_one
from .prompts import tokens

pytestmark = pytest.mark.engine


def _asks(seed: int, count: int, longest_answer: int = 13, sampled: bool = True) -> list[Ask]:
    """Prompts of one to six fragments; some of the fragments are prefixes of one another.

    `sampled` allows n=3 with a seed, which vLLM's CPU worker refuses in a chunked prefill.
    """
    rng = random.Random(seed)
    fragments = [tokens(f"{seed}/{i}", rng.randrange(1, 60)) for i in range(5)]
    fragments += [f[: rng.randrange(1, len(f) + 1)] for f in fragments]
    asks = []
    for _ in range(count):
        prompt = sum((rng.choice(fragments) for _ in range(rng.randrange(1, 7))), ())
        kind = rng.randrange(0 if sampled else 1, 12)
        asks.append(
            Ask(
                prompt,
                max_tokens=rng.randrange(1, longest_answer + 1),
                n=3 if kind == 0 else 1,
                temperature=1.0 if kind == 0 else 0.0,
                seed=rng.randrange(1000) if kind == 0 else None,
                salt="tenant" if kind == 1 else None,
                prompt_logprobs=1 if kind == 2 else None,
                skip_reading=True if kind == 3 else None,
            )
        )
    return asks


@pytest.mark.parametrize("block_size", [16, 32, 128])
def test_three_hundred_in_random_order(compare: Comparison, block_size: int) -> None:
    """300 requests of all sorts arriving at random."""
    asks = _asks(block_size, 300)
    rng = random.Random(1)
    compare(asks, sorted(rng.randrange(450) for _ in asks), block_size=block_size)


@pytest.mark.parametrize("block_size", [16, 128])
def test_every_token_that_could_be_reused_is(compare: Comparison, block_size: int) -> None:
    """One by one in an ample pool, a request reads the longest prefix ever computed."""
    asks = [ask for ask in _asks(2, 80) if ask.n == 1]
    answers = compare(asks, one_by_one(asks), block_size=block_size)
    assert cached(answers["radix"]) == ideal_reuse(asks, answers["off"])


@pytest.mark.parametrize(
    "pool",
    [
        # Barely more than the longest request needs, at three block sizes, with small chunks too.
        {"block_size": 16, "num_gpu_blocks_override": 28, "max_model_len": 400},
        {"block_size": 32, "num_gpu_blocks_override": 15, "max_model_len": 400},
        {"block_size": 128, "num_gpu_blocks_override": 6, "max_model_len": 400},
        {
            "block_size": 32,
            "num_gpu_blocks_override": 15,
            "max_model_len": 400,
            "max_num_batched_tokens": 20,
        },
    ],
    ids=lambda pool: "-".join(str(v) for v in pool.values()),
)
def test_two_hundred_under_pressure(
    engine: EngineFactory, ours: Kind, pool: dict[str, Any]
) -> None:
    """The same in a pool that holds a fraction of them."""
    asks = _asks(3, 200, longest_answer=40, sampled="max_num_batched_tokens" not in pool)
    expected = engine("off", block_size=pool["block_size"]).run(asks)
    rng = random.Random(4)
    eng = engine(ours, **pool)
    assert_same(expected, eng.run(asks, sorted(rng.randrange(900) for _ in asks)))
    assert eng.totals.preemptions > 0 and eng.totals.hits > 0
