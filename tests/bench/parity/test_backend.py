# SPDX-License-Identifier: Apache-2.0
"""Reading vLLM's own counters."""

import pytest
from vllm.v1.metrics.reader import Counter, Gauge, Histogram

from vllm_radix.bench.parity.results import Counts

pytest.importorskip("lm_eval", reason="the backend is lm-eval's")


def test_counts_of_all_engines_and_nothing_else() -> None:
    from vllm_radix.bench.parity.backend import read_counts

    def labels(engine: int) -> dict[str, str]:
        return {"engine": str(engine)}

    metrics = [
        Counter("vllm:prefix_cache_queries", labels(0), 100),
        Counter("vllm:prefix_cache_queries", labels(1), 50),
        Counter("vllm:prefix_cache_hits", labels(0), 30),
        Counter("vllm:external_prefix_cache_hits", labels(0), 7),
        Counter("vllm:num_preemptions", labels(0), 2),
        Gauge("vllm:kv_cache_usage_perc", labels(0), 0.5),
    ]
    assert read_counts(metrics) == Counts(queries=150, hits=30, preemptions=2)
    lifetimes = Histogram("vllm:kv_block_lifetime_seconds", labels(0), 12, 3.5, {"+Inf": 12})
    assert read_counts([*metrics, lifetimes]).recycled_blocks == 12
