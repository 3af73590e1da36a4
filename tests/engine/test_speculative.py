# SPDX-License-Identifier: Apache-2.0
"""N-gram speculation: drafted tokens fill blocks, and most of them are rejected again."""

from typing import Any

import pytest

from .conftest import EngineFactory
from .engines import Ask, Kind, assert_same, one_by_one
from .prompts import reusable, tokens

pytestmark = pytest.mark.engine

NGRAM: dict[str, Any] = {
    "block_size": 16,
    "speculative_config": {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_min": 1,
        "prompt_lookup_max": 2,
    },
}


def _repetitive(count: int) -> list[Ask]:
    """Requests in which most tokens have been seen before, so that much is drafted."""
    return [Ask(tokens(i % 2, 25) * 3 + tokens(i, 3 + i), max_tokens=40) for i in range(count)]


def test_rejected_tokens_never_enter_the_cache(engine: EngineFactory, ours: Kind) -> None:
    """Answers are those without speculation, and a prompt that continues one reads right KV."""
    asks = _repetitive(4)
    expected = engine("off", block_size=16).run(asks)
    radix = engine(ours, **NGRAM)
    assert_same(expected, radix.run(asks))
    assert 0 < radix.totals.accepted < radix.totals.drafted

    longer = [
        Ask(ask.prompt + tuple(answer.tokens[0]) + (7,), max_tokens=4)
        for ask, answer in zip(asks, expected, strict=True)
    ]
    got = radix.run(longer, one_by_one(longer))
    assert_same(engine("off", block_size=16).run(longer), got)
    for ask, answer in zip(longer, got, strict=True):
        # All but the last sampled token was computed, and the last if it had been drafted.
        computed = len(ask.prompt) - 2
        assert answer.cached in {reusable(ours, n, 16) for n in (computed, computed + 1)}


def test_preempted(engine: EngineFactory, ours: Kind) -> None:
    """Speculation in a pool too small for all: drafts of preempted requests are forgotten."""
    asks = _repetitive(6)
    expected = engine("off", block_size=16).run(asks)
    radix = engine(ours, **NGRAM, num_gpu_blocks_override=24, max_model_len=320)
    assert_same(expected, radix.run(asks))
    assert radix.totals.preemptions > 0 and radix.totals.drafted > 0
