# SPDX-License-Identifier: Apache-2.0
"""vLLM's offloading connector on the tree: prefixes move to a second tier and come back."""

import random
from typing import Any

import pytest
from vllm.config import KVTransferConfig

from .conftest import EngineFactory
from .cpu_tier import CpuTierSpec
from .engines import Ask, Kind, assert_same, one_by_one
from .prompts import tokens, whole_blocks

pytestmark = pytest.mark.engine

BLOCK = 16
KINDS_WITH_CACHE = pytest.mark.parametrize("kind", ["stock", "blocks", "radix"])


def _offloading(tier_bytes: int = 16 << 20) -> dict[str, Any]:
    """Engine arguments for a small pool with a tier behind it."""
    connector = KVTransferConfig(
        kv_connector="OffloadingConnector",
        kv_role="kv_both",
        engine_id="offloading",
        kv_connector_extra_config={
            "spec_name": CpuTierSpec.__name__,
            "spec_module_path": CpuTierSpec.__module__,
            "cpu_bytes_to_use": tier_bytes,
        },
    )
    return {
        "block_size": BLOCK,
        "num_gpu_blocks_override": 24,
        "max_model_len": 320,
        "kv_transfer_config": connector,
    }


@KINDS_WITH_CACHE
def test_evicted_prefixes_come_back(engine: EngineFactory, kind: Kind) -> None:
    """Four prompts that do not fit together: the second round reads them from the tier."""
    asks = [Ask(tokens(f"come back {i}", 150)) for i in range(4)]
    expected = engine("off", block_size=BLOCK).run(asks)
    eng = engine(kind, **_offloading())
    for _ in range(3):
        assert_same(expected, eng.run(asks, one_by_one(asks)))
    assert eng.totals.external_hits > 0
    assert eng.totals.external_hits % BLOCK == 0


@KINDS_WITH_CACHE
def test_the_tier_outlives_a_reset(engine: EngineFactory, kind: Kind) -> None:
    """After the prefix cache was emptied, all whole blocks of a prompt come from the tier."""
    ask = Ask(tokens("reset and load", 100))
    expected = engine("off", block_size=BLOCK).run([ask])
    eng = engine(kind, **_offloading())
    eng.run([ask])
    assert eng.llm.reset_prefix_cache()
    got = eng.run([ask])
    assert_same(expected, got)
    assert got[0].cached == eng.totals.external_hits == whole_blocks(99, BLOCK)
    assert eng.totals.hits == 0


@KINDS_WITH_CACHE
def test_local_prefix_and_the_rest_from_the_tier(engine: EngineFactory, kind: Kind) -> None:
    """What is cached locally is not loaded, and what lies behind it is."""
    prompt = tokens("both", 165)
    expected = engine("off", block_size=BLOCK).run([Ask(prompt)])
    eng = engine(kind, **_offloading())
    eng.run([Ask(prompt)])
    assert eng.llm.reset_prefix_cache()
    eng.run([Ask(prompt[:60], skip_reading=True)])
    before = eng.totals.external_hits
    assert_same(expected, eng.run([Ask(prompt)]))
    assert eng.totals.external_hits - before == 160 - 48


@KINDS_WITH_CACHE
@pytest.mark.parametrize("seed", range(2))
def test_random_requests(engine: EngineFactory, kind: Kind, seed: int) -> None:
    """Arrivals at random, preemption, aborts, and a tier too small for all."""
    rng = random.Random(seed)
    parts = [tokens(f"{seed}/{i}", rng.randrange(16, 60)) for i in range(3)]
    asks = [
        Ask(
            sum((rng.choice(parts) for _ in range(rng.randrange(1, 5))), tokens(i, i % 2)),
            max_tokens=rng.randrange(1, 50),
            salt=rng.choice([None, None, "tenant"]),
        )
        for i in range(40)
    ]
    expected = engine("off", block_size=BLOCK).run(asks)
    # Room for 60 blocks of 16 tokens at 1 KiB each.
    eng = engine(kind, **_offloading(60 * 16 * 1024))
    ids: list[str] = []
    aborted: set[int] = set()

    def act(step: int) -> None:
        while len(ids) < len(asks) and len(ids) <= step // 4:
            ids.append(eng.add(asks[len(ids)]))
        if step % 11 == 10:
            victim = rng.randrange(max(0, len(ids) - 6), len(ids))
            if ids[victim] not in eng.answers:
                aborted.add(victim)
                eng.abort(ids[victim])

    eng.drain(act)
    finished = [i for i in range(len(asks)) if i not in aborted]
    assert aborted and len(finished) > 20
    assert_same([expected[i] for i in finished], [eng.answers[ids[i]] for i in finished])
    assert eng.totals.external_hits > 0
    assert eng.totals.preemptions > 0
