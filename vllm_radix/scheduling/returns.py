# SPDX-License-Identifier: Apache-2.0
"""How soon prefixes that nobody uses are used again, learned from those that were.

The next turn of a conversation begins with everything up to the end of the turn before it. Between
the two, nothing uses that prefix; whether it is worth its memory depends on how soon the next turn
comes, if ever. That is a survival analysis: the *hazard* of an age is the share of the prefixes
idle for that long which come back just then. Prefixes evicted in the meantime say nothing about
later ages and count up to the age at which they were last seen (Kaplan and Meier, 1958).
"""

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from vllm_radix.tree import Match, Node

# Ages in seconds at which the buckets begin, a factor of sqrt(2) apart: from 1/16 s to 3 hours.
_AGES = [0.0, *(2.0 ** (step / 2) / 16 for step in range(36))]
_FORGOTTEN_AT = 2.0 ** (36 / 2) / 16

_PRIOR_RETURNS, _PRIOR_ENTRIES = 0.5, 1.0
"""What is assumed of each age beside what was seen: one prefix, of which half came back.

Less, the more prefixes are idle for each that ever came back.
"""

_MEMORY = 1000
"""Halve the counts of an age when they exceed this, so that old habits fade."""

_MAX_IDLE = 1 << 15
"""How many idle prefixes are watched; beyond, the longest idle ones are given up."""


@dataclass(eq=False, slots=True)
class _Idle:
    """A prefix that a request left behind."""

    node: Node
    num_tokens: int
    ended_at: float
    session_id: str | None
    bucket: int = 0

    def is_cached(self) -> bool:
        node = self.node
        return node.end >= self.num_tokens and node.parent is not None and not node.detached


class ReturnEstimator:
    """Watches prefixes between their uses. Times are seconds of any one clock.

    Requests with a ``session_id`` are recognised by it, even if their prefix was evicted; the
    others by the cached prefix that they continue.
    """

    def __init__(self) -> None:
        # By age, and within an age in the order in which they were left behind.
        self._buckets: list[dict[_Idle, None]] = [{} for _ in _AGES]
        self._of_node: dict[Node, _Idle] = {}
        self._of_session: dict[str, _Idle] = {}
        self._num_entered = [0.0] * len(_AGES)
        self._num_returned = [0.0] * len(_AGES)
        self._next_ageing = -math.inf

    def __len__(self) -> int:
        return len(self._of_node)

    def left(self, node: Node, session_id: str | None, now: float) -> None:
        """A request ended, and what it leaves in the cache ends with ``node``. Amortised O(1)."""
        self._age(now)
        before = self._of_node.get(node)
        if before is not None:
            self._drop(before)
        before = self._of_session.get(session_id or "")
        if before is not None:
            self._drop(before)
        if len(self) >= _MAX_IDLE:
            self._drop(next(iter(next(group for group in reversed(self._buckets) if group))))
        idle = _Idle(node, node.end, now, session_id)
        self._of_node[node] = idle
        if session_id:
            self._of_session[session_id] = idle
        self._enter(idle, 0)

    def arrived(self, match: Match | None, session_id: str | None, now: float) -> None:
        """A request arrived and continues what ``match`` covers. O(path)."""
        idle = self._of_session.get(session_id or "")
        if idle is not None:
            self._returns(idle, now)
        if match is None:
            return
        part: Node | None = match.node
        while part is not None:
            idle = self._of_node.get(part)
            if idle is not None and idle.num_tokens <= match.num_tokens and idle.is_cached():
                self._returns(idle, now)
            part = part.parent

    def expected(self, now: float, within: float, probability: float) -> list[Match]:
        """The idle prefixes that are used again within so many seconds, with some probability.

        The most recent ones first.

        O(idle prefixes of the ages that come into question).
        """
        self._age(now)
        log_survival = self._log_survival()
        found = []
        for bucket, group in enumerate(self._buckets):
            if not group:
                continue
            age = _AGES[bucket]
            log_stays = _at(log_survival, age + within) - _at(log_survival, age)
            if 1 - math.exp(log_stays) >= probability:
                found += [
                    Match(idle.node, idle.num_tokens, 0, 0)
                    for idle in reversed(group)
                    if idle.is_cached()
                ]
        return found

    # ------------------------------------------------------------------ inside

    def _log_survival(self) -> list[float]:
        """The logarithm of the share that is still idle at each of ``_AGES``."""
        num_returned = sum(self._num_returned)
        prior = _PRIOR_RETURNS * (num_returned + 1) / (num_returned + len(self) + 1)
        total = 0.0
        result = [total]
        for entered, returned in zip(self._num_entered, self._num_returned, strict=True):
            hazard = (returned + prior) / (max(entered, returned) + _PRIOR_ENTRIES)
            total += math.log1p(-hazard)
            result.append(total)
        return result

    def _returns(self, idle: _Idle, now: float) -> None:
        bucket = bisect_right(_AGES, now - idle.ended_at) - 1
        for passed in range(idle.bucket + 1, bucket + 1):
            self._num_entered[passed] += 1
        self._num_returned[max(bucket, 0)] += 1
        self._drop(idle)

    def _age(self, now: float) -> None:
        """Move prefixes on to the buckets of their ages, the oldest first."""
        if now < self._next_ageing:
            return
        self._next_ageing = now + _AGES[1]
        for bucket in reversed(range(len(_AGES))):
            until = _AGES[bucket + 1] if bucket + 1 < len(_AGES) else _FORGOTTEN_AT
            for idle in self._older_than(bucket, now - until):
                if not idle.is_cached() and idle.session_id is None:
                    # It left at some time within this age.
                    self._num_entered[idle.bucket] -= 0.5
                    self._drop(idle)
                elif now - idle.ended_at >= _FORGOTTEN_AT:
                    self._drop(idle)
                else:
                    del self._buckets[bucket][idle]
                    last = bisect_right(_AGES, now - idle.ended_at) - 1
                    for entered in range(bucket + 1, last):
                        self._num_entered[entered] += 1
                    self._enter(idle, last)

    def _older_than(self, bucket: int, ended_by: float) -> Iterator[_Idle]:
        group = self._buckets[bucket]
        while group:
            idle = next(iter(group))
            if idle.ended_at > ended_by:
                return
            yield idle

    def _enter(self, idle: _Idle, bucket: int) -> None:
        idle.bucket = bucket
        self._buckets[bucket][idle] = None
        self._num_entered[bucket] += 1
        if self._num_entered[bucket] > _MEMORY:
            self._num_entered[bucket] /= 2
            self._num_returned[bucket] /= 2

    def _drop(self, idle: _Idle) -> None:
        del self._buckets[idle.bucket][idle]
        if self._of_node.get(idle.node) is idle:
            del self._of_node[idle.node]
        if idle.session_id and self._of_session.get(idle.session_id) is idle:
            del self._of_session[idle.session_id]


def _at(log_survival: list[float], age: float) -> float:
    """The logarithm of the share that is still idle at ``age``, interpolated."""
    bucket = bisect_right(_AGES, age) - 1
    if bucket + 1 >= len(_AGES):
        return log_survival[-1]
    share = (age - _AGES[bucket]) / (_AGES[bucket + 1] - _AGES[bucket])
    before, after = log_survival[bucket : bucket + 2]
    return before + share * (after - before)
