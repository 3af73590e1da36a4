# SPDX-License-Identifier: Apache-2.0
"""What `/metrics` shows of the prefix cache."""

import pytest
from vllm.v1.metrics.reader import Counter, Gauge

from .conftest import EngineFactory, cached
from .engines import Ask, Engine, one_by_one
from .prompts import tokens

pytestmark = pytest.mark.engine

ASKS = [Ask(tokens(i % 3, 64 + 10 * (i % 3)) + tokens(i, 5)) for i in range(9)]


def _value(engine: Engine, name: str) -> float:
    found = [m for m in engine.llm.get_metrics() if m.name == f"vllm:{name}"]
    assert len(found) == 1
    metric = found[0]
    assert isinstance(metric, Counter | Gauge)
    return metric.value


# Prometheus knows one engine a process, the last that was built: these get engines of their own.
@pytest.mark.parametrize(("kind", "own"), [("stock", 3), ("blocks", 4), ("radix", 5)])
def test_queries_and_hits_count_tokens(engine: EngineFactory, kind: str, own: int) -> None:
    """Queries are prompt tokens looked up and hits those found, each request counted once."""
    eng = engine(kind, max_num_seqs=own)  # type: ignore[arg-type]
    answers = eng.run(ASKS, one_by_one(ASKS))
    assert _value(eng, "prefix_cache_queries") == sum(len(ask.prompt) for ask in ASKS)
    assert _value(eng, "prefix_cache_hits") == sum(cached(answers)) > 0
    assert _value(eng, "prompt_tokens_cached") == sum(cached(answers))
    assert _value(eng, "kv_cache_usage_perc") == 0.0, "what is cached but idle is not in use"


def test_usage_counts_blocks_in_use(engine: EngineFactory) -> None:
    """Each step shows the same share of the pool in use as on stock, shared blocks once."""
    usage: dict[str, list[float]] = {}
    for kind in ("stock", "blocks"):
        eng = engine(kind)
        shown: list[float] = []

        def note(step: int, eng: Engine = eng, shown: list[float] = shown) -> None:
            shown.append(eng.scheduler.kv_cache_manager.usage)

        for ask in ASKS:
            eng.add(ask)
        eng.drain(note)
        usage[kind] = shown
    assert usage["blocks"] == usage["stock"]
    assert max(usage["stock"]) > 0
