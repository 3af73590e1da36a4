# SPDX-License-Identifier: Apache-2.0
"""What is learned of idle prefixes, and which ones are expected back."""

import random

import pytest

from vllm_radix.scheduling import returns
from vllm_radix.scheduling.returns import ReturnEstimator
from vllm_radix.tree import Key, Match, Namespace, Node, RadixTree, pack_tokens


class Cache:
    """A tree of conversations, each of one block."""

    def __init__(self, num_blocks: int = 4000) -> None:
        self.tree = RadixTree(1, num_blocks)
        self.num_used = 0

    def leave(self, estimator: ReturnEstimator, now: float, session_id: str | None = None) -> int:
        number = self.num_used
        self.num_used += 1
        handle = self.tree.enter(Namespace())
        node = self.tree.extend(handle, pack_tokens([number]), [number]).node
        self.tree.release(node)
        estimator.left(node, session_id, now)
        return number

    def match(self, number: int) -> Match:
        return self.tree.match(Key.of([number, 0]))

    def node(self, number: int) -> Node:
        return self.match(number).node


def expected(estimator: ReturnEstimator, now: float, within: float = 2.0) -> int:
    return len(estimator.expected(now, within, 0.5))


def test_before_anything_is_known_half_is_assumed_to_return_at_any_age() -> None:
    estimator, cache = ReturnEstimator(), Cache()
    cache.leave(estimator, 0.0)
    assert expected(estimator, 0.0) == 1
    assert expected(estimator, 0.0, within=0.001) == 0


def test_those_that_return_are_expected_and_those_that_do_not_are_not() -> None:
    for returns_at, is_expected in [(1.0, True), (None, False)]:
        estimator, cache = ReturnEstimator(), Cache()
        for second in range(200):
            number = cache.leave(estimator, float(second))
            if returns_at is not None:
                estimator.arrived(cache.match(number), None, second + returns_at)
        estimator.expected(300.0, 1.0, 0.5)
        cache.leave(estimator, 300.0)
        assert expected(estimator, 300.0) == is_expected


def test_nothing_is_hoped_of_ages_that_nobody_reached_where_nobody_returned() -> None:
    """Requests run for minutes, and the first of them have just ended."""
    estimator, cache = ReturnEstimator(), Cache()
    for number in range(40):
        cache.leave(estimator, number / 40)
    assert expected(estimator, 1.0, within=300.0) == 0


def test_who_stayed_away_for_longer_than_all_others_is_not_expected_any_more() -> None:
    estimator, cache = ReturnEstimator(), Cache()
    for second in range(400):
        number = cache.leave(estimator, float(second))
        # Nine in ten come back after half a second, the others not at all.
        if second % 10:
            estimator.arrived(cache.match(number), None, second + 0.5)
    assert expected(estimator, 500.0) == 0
    cache.leave(estimator, 500.0)
    assert expected(estimator, 500.1) == 1
    assert expected(estimator, 503.0) == 0


def test_what_was_evicted_is_not_held_against_the_others() -> None:
    """Half are evicted at once. That says nothing of how many would have come back."""
    estimator, cache = ReturnEstimator(), Cache()
    for second in range(200):
        number = cache.leave(estimator, float(second))
        if second % 2:
            cache.tree.evict(cache.tree.num_evictable_blocks)
        else:
            estimator.arrived(cache.match(number), None, second + 0.8)
    cache.leave(estimator, 300.0)
    assert expected(estimator, 300.0) == 1


def test_a_session_is_recognised_though_its_prefix_was_evicted() -> None:
    estimator, cache = ReturnEstimator(), Cache()
    for second in range(100):
        cache.leave(estimator, float(second), f"session {second}")
        cache.tree.evict(1)
        estimator.arrived(None, f"session {second}", second + 0.8)
    assert len(estimator) == 0
    cache.leave(estimator, 200.0, "another")
    assert expected(estimator, 200.0) == 1


def test_only_what_is_cached_is_expected() -> None:
    estimator, cache = ReturnEstimator(), Cache()
    cache.leave(estimator, 0.0)
    cache.tree.evict(1)
    assert expected(estimator, 0.0) == 0


def test_a_request_that_shares_less_is_no_return() -> None:
    tree = RadixTree(1, 8)
    node = tree.extend(tree.enter(Namespace()), pack_tokens([1, 2, 3]), [0, 1, 2]).node
    tree.release(node)
    estimator = ReturnEstimator()
    estimator.left(node, None, 0.0)
    estimator.arrived(tree.match(Key.of([1, 2, 9])), None, 1.0)
    assert len(estimator) == 1
    estimator.arrived(tree.match(Key.of([1, 2, 3, 4])), None, 1.0)
    assert len(estimator) == 0


def test_the_next_turn_of_a_session_takes_the_place_of_the_one_before() -> None:
    estimator, cache = ReturnEstimator(), Cache()
    for second in range(3):
        cache.leave(estimator, float(second), "one session")
    assert len(estimator) == 1


def test_a_session_may_leave_one_prefix_twice() -> None:
    """Two of its requests ran side by side."""
    estimator, cache = ReturnEstimator(), Cache()
    number = cache.leave(estimator, 0.0, "one session")
    estimator.left(cache.node(number), "one session", 1.0)
    assert len(estimator) == 1
    estimator.left(cache.node(number), None, 2.0)
    estimator.left(cache.node(number), "one session", 3.0)
    estimator.arrived(cache.match(number), "one session", 4.0)
    assert len(estimator) == 0


def test_the_most_recent_come_first() -> None:
    estimator, cache = ReturnEstimator(), Cache()
    numbers = [cache.leave(estimator, now) for now in (0.0, 0.01, 3.0, 3.01)]
    found = [match.node for match in estimator.expected(3.02, 1e6, 0.0)]
    assert found == [cache.node(number) for number in reversed(numbers)]


def test_few_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(returns, "_MAX_IDLE", 10)
    estimator, cache = ReturnEstimator(), Cache()
    numbers = [cache.leave(estimator, second / 10) for second in range(50)]
    assert len(estimator) == 10
    # Those that were left last.
    found = {match.node for match in estimator.expected(5.0, 1e6, 0.0)}
    assert found == {cache.node(number) for number in numbers[-10:]}


def test_after_hours_an_idle_prefix_is_forgotten() -> None:
    estimator, cache = ReturnEstimator(), Cache()
    cache.leave(estimator, 0.0)
    estimator.expected(3600.0, 1.0, 0.5)
    assert len(estimator) == 1
    estimator.expected(1e6, 1.0, 0.5)
    assert len(estimator) == 0


def test_ages_are_counted_as_they_were_whenever_one_looks() -> None:
    """Looking often or rarely makes no difference to what is known."""
    often, rarely = ReturnEstimator(), ReturnEstimator()
    caches = Cache(), Cache()
    rng = random.Random(0)
    due: list[tuple[float, int]] = []
    for step in range(300):
        now = step * 0.3
        for estimator, cache in zip((often, rarely), caches, strict=True):
            number = cache.leave(estimator, now)
        if rng.random() < 0.7:
            due.append((now + rng.choice([0.2, 1.0, 4.0]), number))
        for moment, returning in [entry for entry in due if entry[0] <= now]:
            due.remove((moment, returning))
            for estimator, cache in zip((often, rarely), caches, strict=True):
                estimator.arrived(cache.match(returning), None, now)
        often.expected(now, 1.0, 0.5)
    # Both look now.
    for estimator in (often, rarely):
        estimator.expected(100.0, 1.0, 0.5)
    assert often._num_returned == rarely._num_returned
    assert often._num_entered == pytest.approx(rarely._num_entered, abs=1e-9)
