# SPDX-License-Identifier: Apache-2.0
"""A server's own figures over the time of a run."""

import asyncio
import contextlib
import time
from statistics import fmean

import httpx

from vllm_radix.bench.ab.results import Sample
from vllm_radix.bench.connections import KEEP_IDLE
from vllm_radix.bench.server import parse_samples

INTERVAL = 0.5
"""Seconds between two looks."""
_COUNTERS = {
    "queries": "vllm:prefix_cache_queries_total",
    "hits": "vllm:prefix_cache_hits_total",
    "preemptions": "vllm:num_preemptions_total",
}
_REQUESTS = {"running": "vllm:num_requests_running", "waiting": "vllm:num_requests_waiting"}
_KV_USAGE = "vllm:kv_cache_usage_perc"


def read_sample(text: str, seconds: float) -> Sample | None:
    """What the text of ``/metrics`` says, at a time; None if it isn't vLLM's.

    Of several engines behind one server, counts are added up and the KV usage is the mean.
    """
    found = parse_samples(text)
    if _KV_USAGE not in found:
        return None
    sums = {field: sum(found.get(name, ())) for field, name in (_COUNTERS | _REQUESTS).items()}
    return Sample(time=seconds, kv_usage=fmean(found[_KV_USAGE]), **sums)


class Poller:
    """Reads ``/metrics`` of one server again and again."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/metrics"
        limits = httpx.Limits(keepalive_expiry=KEEP_IDLE)
        self._http = httpx.AsyncClient(trust_env=False, timeout=30, limits=limits)
        self._first: Sample | None = None
        self._started = time.monotonic()
        self.samples: list[Sample] = []
        """Counts are since the first of them. Empty if the server tells nothing."""

    async def run(self) -> None:
        """Take samples until cancelled."""
        while True:
            # A server too busy to answer, or a dead one, is for others to notice.
            with contextlib.suppress(httpx.HTTPError):
                await self.take()
            await asyncio.sleep(INTERVAL)

    async def take(self) -> None:
        """Take a sample.

        Raises:
            httpx.HTTPError: the server gives none.
        """
        response = await self._http.get(self._url)
        if response.status_code == httpx.codes.NOT_FOUND:
            return
        response.raise_for_status()
        sample = read_sample(response.text, time.monotonic() - self._started)
        if sample is None:
            return
        if self._first is None:
            self._first = sample
            self._started = time.monotonic()
            sample = sample.model_copy(update={"time": 0.0})
        first = self._first
        counts = {name: getattr(sample, name) - getattr(first, name) for name in _COUNTERS}
        self.samples.append(sample.model_copy(update=counts))

    async def close(self) -> None:
        """Close the connection."""
        await self._http.aclose()
