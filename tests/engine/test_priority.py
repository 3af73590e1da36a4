# SPDX-License-Identifier: Apache-2.0
"""The priority policy: who runs first, and who is preempted for whom."""

from typing import Any

import pytest

from .conftest import EngineFactory
from .engines import Ask, Engine, Kind, assert_same
from .prompts import tokens

pytestmark = pytest.mark.engine

POLICY: dict[str, Any] = {"scheduling_policy": "priority", "block_size": 16}


def _first_tokens(engine: Engine, asks: list[Ask]) -> list[int]:
    """Run all requests; returns their numbers in the order in which they were first admitted."""
    ids = [engine.add(ask) for ask in asks]
    seen: list[str] = []

    def note(step: int) -> None:
        running = (r.request_id for r in engine.scheduler.running)
        seen.extend(r for r in running if r not in seen)

    engine.drain(note)
    return [next(i for i, name in enumerate(ids) if s.startswith(name + "-")) for s in seen]


def test_order(engine: EngineFactory, ours: Kind) -> None:
    """One slot: lower values first, ties by arrival; the same order as on stock."""
    asks = [
        Ask(tokens(i % 3, 40) + tokens(i, 5), max_tokens=2, priority=priority)
        for i, priority in enumerate([5, 1, 3, 1, 5, 0, 3])
    ]
    args = {**POLICY, "max_num_seqs": 1}
    order = _first_tokens(engine(ours, **args), asks)
    assert order == [5, 1, 3, 2, 6, 0, 4]
    assert order == _first_tokens(engine("stock", **args), asks)


@pytest.mark.parametrize("kind", ["stock", "blocks", "radix"])
def test_the_least_important_is_preempted(engine: EngineFactory, kind: Any) -> None:
    """Under pressure an urgent request takes the blocks of the least urgent; answers stay right."""
    asks = [Ask(tokens(i, 80), max_tokens=60, priority=10 - i) for i in range(6)]
    expected = engine("off", block_size=16).run(asks)
    eng = engine(kind, **POLICY, num_gpu_blocks_override=24, max_model_len=320)
    arrivals = [5 * i for i in range(6)]
    assert_same(expected, eng.run(asks, arrivals))
    assert eng.totals.preemptions > 0
