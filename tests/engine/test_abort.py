# SPDX-License-Identifier: Apache-2.0
"""Requests aborted at any point of their life: nothing leaks, and nobody else notices."""

import random
from typing import Any

import pytest

from .conftest import EngineFactory
from .engines import Ask, Engine, Kind, assert_same
from .prompts import reusable, tokens

pytestmark = pytest.mark.engine

CHUNK = 24
CHUNKED: dict[str, Any] = {"block_size": 16, "max_num_batched_tokens": CHUNK}


def _run_and_abort(engine: Engine, asks: list[Ask], victim: int, step: int) -> dict[int, Any]:
    """Run all requests, abort one before `step`; returns the answers of the others."""
    ids = [engine.add(ask) for ask in asks]

    def abort(now: int) -> None:
        if now == step:
            engine.abort(ids[victim])

    engine.drain(abort)
    return {i: engine.answers[ids[i]] for i in range(len(asks)) if i != victim}


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_abort_before_any_step(engine: EngineFactory, ours: Kind, victim: int) -> None:
    """Between two prefill chunks, while waiting, in decode, and before the first step."""
    base = tokens("abort", 90)
    asks = [Ask(base + tokens(i, 5 + i), max_tokens=12) for i in range(3)]
    expected = engine("off", block_size=16).run(asks)
    radix = engine(ours, **CHUNKED)
    steps = 2 + 3 * 100 // CHUNK + 12  # beyond the end of a run
    for step in range(steps):
        others = _run_and_abort(radix, asks, victim, step)
        assert_same([expected[i] for i in others], list(others.values()))
        assert radix.used_blocks == 0
        # What the victim left behind is sound: the same prompts give the same answers.
        assert_same(expected, radix.run(asks))
        radix.reset()


@pytest.mark.parametrize("num_chunks", [1, 2, 3])
def test_chunks_of_an_aborted_prefill_are_reused(
    engine: EngineFactory, ours: Kind, num_chunks: int
) -> None:
    """What an aborted request had computed may be read by the next; not what it had only planned.

    Chunks of 24 tokens end inside a block of 16 every other time.
    """
    prompt = tokens("chunks", 100)
    expected = engine("off", block_size=16).run([Ask(prompt)])
    radix = engine(ours, **CHUNKED)
    aborted = radix.add(Ask(prompt))
    for _ in range(num_chunks):
        radix.step()
    radix.abort(aborted)
    got = radix.run([Ask(prompt)])
    assert_same(expected, got)
    assert got[0].cached == reusable(ours, num_chunks * CHUNK, 16)


def test_abort_the_one_that_others_read(engine: EngineFactory, ours: Kind) -> None:
    """Requests that were admitted on the blocks of a running prefill outlive it."""
    prompt = tokens("leader", 64)
    asks = [Ask(prompt + tokens(i, 10), max_tokens=20) for i in range(4)]
    expected = engine("off", block_size=16).run(asks)
    radix = engine(ours, block_size=16)
    for step in range(1, 22):
        others = _run_and_abort(radix, asks, 0, step)
        assert_same([expected[i] for i in others], list(others.values()))


def test_abort_one_continuation_of_five(engine: EngineFactory, ours: Kind) -> None:
    """Aborting a request with n=5 frees all its continuations and leaves the rest alone."""
    prompt = tokens("five", 50)
    asks = [Ask(prompt, n=5, temperature=1.0, seed=5, max_tokens=20), Ask(prompt, max_tokens=20)]
    expected = engine("off", block_size=16).run(asks)
    radix = engine(ours, block_size=16)
    for step in range(0, 21, 3):
        others = _run_and_abort(radix, asks, 0, step)
        assert_same([expected[1]], list(others.values()))
        assert radix.used_blocks == 0
    assert_same(expected, radix.run(asks))


@pytest.mark.parametrize("seed", range(3))
def test_random_aborts_under_pressure(engine: EngineFactory, ours: Kind, seed: int) -> None:
    """A third of the requests aborted at random, some while waiting, preempted or resumed."""
    rng = random.Random(seed)
    bases = [tokens(f"{seed}/{i}", 60) for i in range(3)]
    asks = [
        Ask(
            rng.choice(bases)[: rng.randrange(20, 61)]
            + tokens(f"{seed}:{i}", rng.randrange(1, 30)),
            max_tokens=rng.randrange(1, 60),
        )
        for i in range(40)
    ]
    expected = engine("off", block_size=16).run(asks)
    radix = engine(
        ours,
        block_size=16,
        num_gpu_blocks_override=24,
        max_model_len=320,
        max_num_batched_tokens=rng.choice([24, 64, 256]),
    )
    ids: list[str] = []
    aborted: set[int] = set()

    def act(step: int) -> None:
        while len(ids) < len(asks) and len(ids) <= step // 3:
            ids.append(radix.add(asks[len(ids)]))
        if step % 5 == 4 and len(aborted) < len(asks) // 3:
            victim = rng.randrange(max(0, len(ids) - 8), len(ids))
            if ids[victim] not in radix.answers:
                aborted.add(victim)
                radix.abort(ids[victim])

    radix.drain(act)
    assert len(ids) == len(asks) and aborted
    finished = [i for i in range(len(asks)) if i not in aborted]
    assert_same([expected[i] for i in finished], [radix.answers[ids[i]] for i in finished])
    assert radix.totals.preemptions > 0
