# SPDX-License-Identifier: Apache-2.0
"""No cache beats the bounds, and some reach them."""

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_radix.bench.replay.bounds import BoundFinder
from vllm_radix.bench.replay.sessions import Call
from vllm_radix.bench.replay.workloads import make_generator

Prefix = tuple[int, ...]
Order = Callable[[Prefix], float]


def make_call(prompt: Sequence[int], answer: Sequence[int]) -> Call:
    return Call(np.array(prompt, np.int32), np.array(answer, np.int32))


# Few token ids, so that prompts share a lot and repeat each other's answers.
tokens = st.lists(st.integers(0, 1), min_size=1, max_size=5)
calls_strategy = st.lists(st.builds(make_call, tokens, tokens), min_size=1, max_size=12)


def hit_rate(
    calls: Sequence[Call], capacity: int, evict_first: Order, used: dict[Prefix, int]
) -> float:
    """A cache of single tokens that evicts leaves in some order; tokens are named by prefixes."""
    cached: set[Prefix] = set()
    hits = 0
    for number, call in enumerate(calls):
        text = tuple(call.text().tolist())
        for end in range(1, len(call.prompt)):
            if text[:end] not in cached:
                break
            hits += 1
        for end in range(1, len(text)):
            cached.add(text[:end])
            used[text[:end]] = number
        while len(cached) > capacity:
            leaves = [one for one in cached if not any((*one, t) in cached for t in (0, 1))]
            cached.remove(min(leaves, key=evict_first))
    return hits / sum(len(call.prompt) for call in calls)


@given(calls_strategy, st.integers(0, 30), st.integers(0, 3))
def test_no_policy_beats_foresight(calls: list[Call], capacity: int, seed: int) -> None:
    finder = BoundFinder(calls)
    clairvoyant = finder.clairvoyant(capacity)
    assert clairvoyant <= finder.unlimited()
    used: dict[Prefix, int] = {}
    policies: list[Order] = [
        lambda prefix: used[prefix],
        lambda prefix: -used[prefix],
        lambda prefix: -len(prefix),
        lambda prefix: random.Random(hash((seed, prefix))).random(),
    ]
    for policy in policies:
        assert hit_rate(calls, capacity, policy, used) <= clairvoyant + 1e-9


@given(calls_strategy)
def test_a_cache_that_evicts_nothing_reaches_the_first_bound(calls: list[Call]) -> None:
    finder = BoundFinder(calls)
    assert hit_rate(calls, 10**6, len, {}) == pytest.approx(finder.unlimited())
    everything = {
        tuple(call.text()[:end].tolist()) for call in calls for end in range(1, call.num_tokens)
    }
    assert finder.footprint == len(everything)
    assert finder.clairvoyant(finder.footprint) == finder.unlimited()


@given(calls_strategy)
def test_more_memory_never_hurts_foresight(calls: list[Call]) -> None:
    finder = BoundFinder(calls)
    rates = [finder.clairvoyant(capacity) for capacity in range(finder.footprint + 1)]
    assert rates == sorted(rates)
    assert rates[0] == 0


def test_foresight_keeps_what_comes_back() -> None:
    # Two prompts alternate in a cache that holds one and a token of the other. LRU finds nothing.
    a, b = make_call([0] * 5, [9]), make_call([1] * 5, [9])
    calls = [a, b] * 4
    used: dict[Prefix, int] = {}
    assert hit_rate(calls, 5, lambda prefix: used[prefix], used) == 0
    assert BoundFinder(calls).unlimited() == pytest.approx(6 * 4 / 40)
    assert BoundFinder(calls).clairvoyant(5) == pytest.approx((3 * 4 + 3 * 1) / 40)


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    call = make_call([1, 2, 3], [4])
    assert BoundFinder([call, call]).unlimited() == pytest.approx(2 / 6)


def test_sharing_of_the_generated_workloads() -> None:
    batch = make_generator("batch", {}).generate(0)
    assert BoundFinder(list(batch.calls())).unlimited() == pytest.approx(0.905, abs=0.001)
    agents = make_generator("agents", {}).generate(0)
    assert BoundFinder(list(agents.calls())).unlimited() == pytest.approx(0.872, abs=0.003)
    unique = make_generator("unique", {}).generate(0)
    assert BoundFinder(list(unique.calls())).unlimited() < 1e-4
