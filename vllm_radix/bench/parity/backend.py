# SPDX-License-Identifier: Apache-2.0
"""lm-eval's ``vllm`` backend, with counts of what the prefix cache did. Needs lm-eval."""

from typing import Any

from lm_eval.models.vllm_causallms import VLLM
from vllm.v1.metrics.reader import Counter, Histogram, Metric

from vllm_radix.bench.parity.results import Counts

_COUNTERS = {
    "vllm:prefix_cache_queries": "queries",
    "vllm:prefix_cache_hits": "hits",
    "vllm:num_preemptions": "preemptions",
}
# vLLM observes the lifetime of a block when it hands it out again.
_RECYCLED = "vllm:kv_block_lifetime_seconds"


class CountingVLLM(VLLM):
    """Keeps in ``counts`` what the engine counted during ``generate_until`` requests."""

    def __init__(self, **model_args: Any) -> None:
        super().__init__(**model_args)
        self.counts = Counts()

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        before = read_counts(self.model.get_metrics())
        answers: list[str] = super().generate_until(requests, disable_tqdm)
        self.counts = self.counts.plus(before, read_counts(self.model.get_metrics()))
        return answers


def read_counts(metrics: list[Metric]) -> Counts:
    """What an engine has counted since it started, from ``LLM.get_metrics()``."""
    found: dict[str, int] = {}
    for metric in metrics:
        if isinstance(metric, Counter) and (name := _COUNTERS.get(metric.name)):
            found[name] = found.get(name, 0) + metric.value
        elif isinstance(metric, Histogram) and metric.name == _RECYCLED:
            found["recycled_blocks"] = found.get("recycled_blocks", 0) + metric.count
    return Counts.model_validate(found)
