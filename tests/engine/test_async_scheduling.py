# SPDX-License-Identifier: Apache-2.0
"""Asynchronous scheduling: each step is planned before the tokens of the last are known."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from .asynchronous import asynchronous_cpu
from .conftest import EngineFactory, cached
from .engines import Ask, Kind, assert_same, one_by_one
from .prompts import reusable, tokens

pytestmark = pytest.mark.engine

ASYNC: dict[str, Any] = {"async_scheduling": True, "block_size": 16}
SMALL_POOL: dict[str, Any] = {**ASYNC, "num_gpu_blocks_override": 24, "max_model_len": 320}


@pytest.fixture(autouse=True)
def _asynchronous() -> Iterator[None]:
    with asynchronous_cpu():
        yield


def test_the_scheduler_fits_the_config(engine: EngineFactory, ours: Kind) -> None:
    assert isinstance(engine(ours, **ASYNC).scheduler, AsyncScheduler)
    assert not isinstance(engine(ours, block_size=16).scheduler, AsyncScheduler)


@pytest.mark.parametrize("chunk", [2048, 40])
def test_shared_prefixes(engine: EngineFactory, ours: Kind, chunk: int) -> None:
    base = tokens("async", 75)
    asks = [Ask(base[: 75 - i] + tokens(i, 10 + 3 * i), max_tokens=30) for i in range(10)]
    expected = engine("off", block_size=16).run(asks)
    eng = engine(ours, **ASYNC, max_num_batched_tokens=chunk)
    assert_same(expected, eng.run(asks, [i // 2 for i in range(10)]))
    assert eng.totals.hits > 0
    assert_same(expected, eng.run(asks))


def test_hits_are_those_of_stock(engine: EngineFactory) -> None:
    """One by one, so that what is cached does not depend on how steps overlap."""
    asks = [Ask(tokens(i % 3, 50 + 7 * (i % 3)) + tokens(i, 4 * i), max_tokens=9) for i in range(9)]
    answers = {
        kind: engine(kind, **ASYNC).run(asks, one_by_one(asks)) for kind in ("stock", "blocks")
    }
    assert cached(answers["blocks"]) == cached(answers["stock"])


def test_a_resend_reads_the_answer(engine: EngineFactory, ours: Kind) -> None:
    """A sampled token enters the cache once it is known and its KV computed."""
    prompt = tokens("async resend", 50)
    [first] = engine("off", block_size=16).run([Ask(prompt, max_tokens=30)])
    longer = Ask((*prompt, *first.tokens[0], 8))
    eng = engine(ours, **ASYNC)
    eng.run([Ask(prompt, max_tokens=30)])
    got = eng.run([longer])
    assert_same(engine("off", block_size=16).run([longer]), got)
    # The last sampled token's KV is computed only if a step was planned beyond the end.
    assert got[0].cached in {reusable(ours, n, 16) for n in (79, 80)}


def test_preempted_and_resumed(engine: EngineFactory, ours: Kind) -> None:
    asks = [Ask(tokens("p", 40) + tokens(i, 5 + 3 * i), max_tokens=50 + i) for i in range(10)]
    expected = engine("off", block_size=16).run(asks)
    eng = engine(ours, **SMALL_POOL)
    assert_same(expected, eng.run(asks))
    assert eng.totals.preemptions > 0


def test_abort_before_any_step(engine: EngineFactory, ours: Kind) -> None:
    """Also while the step that the aborted request is part of is still in flight."""
    base = tokens("async abort", 60)
    asks = [Ask(base + tokens(i, 5 + i), max_tokens=10) for i in range(3)]
    expected = engine("off", block_size=16).run(asks)
    eng = engine(ours, **ASYNC, max_num_batched_tokens=40)
    for at in range(18):
        ids = [eng.add(ask) for ask in asks]

        def abort(step: int, at: int = at, victim: str = ids[1]) -> None:
            if step == at:
                eng.abort(victim)

        eng.drain(abort)
        assert_same([expected[0], expected[2]], [eng.answers[ids[0]], eng.answers[ids[2]]])
        assert_same(expected, eng.run(asks))
        eng.reset()


@pytest.mark.parametrize("at", [1, 2, 3, 9])
def test_reset_with_requests_running(engine: EngineFactory, ours: Kind, at: int) -> None:
    asks = [Ask(tokens("r", 70) + tokens(i, 6 + i), max_tokens=24) for i in range(4)]
    expected = engine("off", block_size=16).run(asks)
    eng = engine(ours, **ASYNC)
    ids = [eng.add(ask) for ask in asks]

    def reset(step: int) -> None:
        if step == at:
            assert eng.llm.reset_prefix_cache(reset_running_requests=True)

    eng.drain(reset)
    assert_same(expected, [eng.answers[i] for i in ids])


def test_structured_output(engine: EngineFactory, ours: Kind) -> None:
    prompt = tokens("async grammar", 40)
    structure = StructuredOutputsParams(regex="[a-z]{8}[0-9]{8}")
    asks = [Ask(prompt + tokens(i, i), max_tokens=20, structure=structure) for i in range(4)]
    asks += [Ask(prompt + tokens(9 + i, i)) for i in range(3)]
    expected = engine("off", block_size=16).run(asks)
    assert_same(expected, engine(ours, **ASYNC).run(asks))


@pytest.mark.parametrize("seed", range(3))
def test_random_requests_under_pressure(engine: EngineFactory, ours: Kind, seed: int) -> None:
    """Arrivals, preemption and aborts at random."""
    rng = random.Random(seed)
    parts = [tokens(f"{seed}/{i}", rng.randrange(10, 50)) for i in range(4)]
    asks = [
        Ask(
            sum((rng.choice(parts) for _ in range(rng.randrange(1, 5))), tokens(i, i % 3)),
            max_tokens=rng.randrange(1, 60),
        )
        for i in range(40)
    ]
    expected = engine("off", block_size=16).run(asks)
    eng = engine(ours, **SMALL_POOL, max_num_batched_tokens=rng.choice([32, 512]))
    ids: list[str] = []
    aborted: set[int] = set()

    def act(step: int) -> None:
        while len(ids) < len(asks) and len(ids) <= step // 4:
            ids.append(eng.add(asks[len(ids)]))
        if step % 13 == 12:
            victim = rng.randrange(max(0, len(ids) - 6), len(ids))
            if ids[victim] not in eng.answers:
                aborted.add(victim)
                eng.abort(ids[victim])

    eng.drain(act)
    finished = [i for i in range(len(asks)) if i not in aborted]
    assert_same([expected[i] for i in finished], [eng.answers[ids[i]] for i in finished])
    assert eng.totals.preemptions > 0 and eng.totals.hits > 0
