# SPDX-License-Identifier: Apache-2.0
"""Emptying the prefix cache: idle, with requests running, and when the engine goes to sleep."""

import pytest

from .conftest import EngineFactory
from .engines import Ask, Kind, assert_same
from .prompts import reusable, tokens

pytestmark = pytest.mark.engine

ASKS = [Ask(tokens("reset", 70) + tokens(i, 6 + i), max_tokens=24) for i in range(4)]


def test_idle(engine: EngineFactory, ours: Kind) -> None:
    """After a reset nothing is found, and everything can be cached again."""
    radix = engine(ours)
    first = radix.run(ASKS)
    assert radix.llm.reset_prefix_cache()
    again = radix.run(ASKS)
    assert_same(first, again)
    assert [a.cached for a in again] == [0, 64, 64, 64]


def test_refused_while_requests_run(engine: EngineFactory, ours: Kind) -> None:
    """As on stock, a plain reset does nothing and says so while a request holds blocks."""
    expected = engine("off").run(ASKS)
    radix = engine(ours)
    ids = [radix.add(ask) for ask in ASKS]

    def reset(step: int) -> None:
        if 0 < step < 24:
            assert not radix.llm.reset_prefix_cache()

    radix.drain(reset)
    assert_same(expected, [radix.answers[i] for i in ids])
    assert radix.run([ASKS[0]])[0].cached == reusable(ours, len(ASKS[0].prompt) - 1, 32)


@pytest.mark.parametrize("chunk", [2048, 24])
@pytest.mark.parametrize("at", [1, 2, 5, 20])
def test_with_requests_running(engine: EngineFactory, ours: Kind, at: int, chunk: int) -> None:
    """A forced reset preempts what runs; its tokens are computed again, on nothing old."""
    expected = engine("off").run(ASKS)
    radix = engine(ours, max_num_batched_tokens=chunk)
    ids = [radix.add(ask) for ask in ASKS]
    used_after: list[int] = []

    def reset(step: int) -> None:
        if step == at:
            assert radix.llm.reset_prefix_cache(reset_running_requests=True)
            used_after.append(radix.used_blocks)

    radix.drain(reset)
    assert used_after == [0]
    assert_same(expected, [radix.answers[i] for i in ids])
    assert radix.totals.preemptions > 0


def test_again_and_again(engine: EngineFactory, ours: Kind) -> None:
    """A forced reset every third step, so that requests are preempted many times."""
    expected = engine("off").run(ASKS)
    radix = engine(ours)
    ids = [radix.add(ask) for ask in ASKS]

    def reset(step: int) -> None:
        if step % 3 == 2:
            radix.llm.reset_prefix_cache(reset_running_requests=True)

    radix.drain(reset)
    assert_same(expected, [radix.answers[i] for i in ids])


# The CPU worker keeps its memory when told to sleep, so these tests see the scheduler's part of
# it: requests are dropped or kept, the cache is emptied, nothing runs until the engine wakes.


def test_sleep_drops_requests_and_cache(engine: EngineFactory, ours: Kind) -> None:
    expected = engine("off").run(ASKS)
    radix = engine(ours)
    ids = [radix.add(ask) for ask in ASKS]
    for _ in range(5):
        radix.step()
    radix.llm.sleep(level=1, mode="abort")
    assert radix.llm.is_sleeping()
    assert radix.used_blocks == 0
    for request_id in ids:  # an in-process engine leaves it to its user to forget them
        radix.abort(request_id)
    radix.llm.wake_up()
    assert not radix.llm.is_sleeping()
    again = radix.run(ASKS)
    assert_same(expected, again)
    assert [a.cached for a in again] == [0, 64, 64, 64]


def test_sleep_keeps_requests(engine: EngineFactory, ours: Kind) -> None:
    """Requests kept over a sleep that empties the cache compute their tokens again."""
    expected = engine("off").run(ASKS)
    radix = engine(ours)
    ids = [radix.add(ask) for ask in ASKS]
    for _ in range(5):
        radix.step()
    radix.llm.sleep(level=1, mode="keep")
    assert radix.used_blocks == 0
    for _ in range(3):
        assert radix.step() == []
    radix.llm.wake_up()
    radix.drain()
    assert_same(expected, [radix.answers[i] for i in ids])


def test_pause_keeps_requests_and_cache(engine: EngineFactory, ours: Kind) -> None:
    """Sleep level 0 stops scheduling and touches nothing."""
    expected = engine("off").run(ASKS)
    radix = engine(ours)
    ids = [radix.add(ask) for ask in ASKS]
    for _ in range(5):
        radix.step()
    used = radix.used_blocks
    radix.llm.sleep(level=0, mode="keep")
    for _ in range(3):
        assert radix.step() == []
    assert radix.used_blocks == used > 0
    radix.llm.wake_up(tags=["scheduling"])
    radix.drain()
    assert_same(expected, [radix.answers[i] for i in ids])
    assert radix.totals.preemptions == 0
    assert radix.run([ASKS[1]])[0].cached == reusable(ours, len(ASKS[1].prompt) - 1, 32)
