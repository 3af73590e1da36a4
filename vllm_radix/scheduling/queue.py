# SPDX-License-Identifier: Apache-2.0
"""The waiting queue, ordered by what is cached.

``schedule()`` of vLLM peeks at the front, then pops it or skips it; so an order of our own needs
no change to it. The rule and its bound are explained in ``docs/scheduling.md``.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, takewhile
from operator import attrgetter
from typing import Any, Protocol

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request, RequestStatus

WINDOW = 1024
"""How many waiting requests, the oldest, are ordered. Those behind them wait to become old."""


class CachedPrefix(Protocol):
    """What a probe finds, such as a :class:`~vllm_radix.tree.Match`."""

    @property
    def num_tokens(self) -> int:
        """How long it is."""

    @property
    def node(self) -> Any:
        """Where it ends: one and the same object for requests that share their branch."""


Probe = Callable[[Request], CachedPrefix | None]
"""Finds the longest cached prefix of a request, None if it may have none, and changes nothing."""


@dataclass(eq=False, slots=True)
class Waiting:
    """A request in the queue.

    Attributes:
        priority: its lane: lower is more important; 0 for all unless vLLM schedules by priority.
        arrival: its place in the order of arrival, whatever happened to it since.
        is_resumed: it ran before and was preempted.
        deadline: by which admission of its lane it has to be admitted.
        match: its longest cached prefix when the queue looked last.
        rank: sorts the requests of a lane.
        num_tokens_ahead: evictable tokens that only those ahead of it are about to use.
    """

    request: Request
    priority: int
    arrival: int
    is_resumed: bool = False
    deadline: float = 0.0
    match: CachedPrefix | None = None
    rank: tuple[int, int, int] = (0, 0, 0)
    num_tokens_ahead: int = 0

    @property
    def num_cached_tokens(self) -> int:
        """Tokens of the longest cached prefix."""
        return self.match.num_tokens if self.match is not None else 0


class Gate(Protocol):
    """Decides whether a request had better wait although there is room for it."""

    def is_held(self, waiting: Waiting) -> bool:
        """Whether starting the request now would cost more than it gains. O(1)."""

    def on_admitted(self, waiting: Waiting) -> None:
        """The request was started."""


class PrefixAffinityQueue(RequestQueue):
    """Gives out the resumed requests first, then by cached prefix, and nobody too late.

    Args:
        probe: says what is cached of a request.
        gate: may hold requests back; they are in the queue, but not given out for now.
        patience: how many times as many admissions as first come, first served would take a
            request waits at most. With n others ahead of it in the order of arrival (and, if vLLM
            schedules by priority, no more important one about), it is admitted after at most
            ``patience * (n + 1)`` admissions, whatever arrives later. 1 is first come, first
            served.
        by_priority: whether ``Request.priority`` comes before all else.
    """

    def __init__(
        self,
        probe: Probe,
        gate: Gate,
        *,
        patience: float,
        by_priority: bool,
    ) -> None:
        self._gate = gate
        self._by_priority = by_priority
        self._make_lane = partial(_Lane, probe, gate, patience)
        self._lanes: dict[int, _Lane] = {}
        self._entries: dict[str, Waiting] = {}
        self._num_arrived = 0
        # How many had arrived when the last step started.
        self._num_seen = 0
        # Given out in this step: those that are skipped come back.
        self._given: dict[str, Waiting] = {}
        self._last_given: Waiting | None = None
        # What `_choose` found, until something changes.
        self._front: Waiting | None = None
        self._is_front_known = False
        self._somebody_waited = False

    def start_step(self) -> None:
        """Look at what changed since the last step. O(waiting, up to the window)."""
        self._count_admission()
        self._given.clear()
        self._is_front_known = False
        # Where everybody finds room at once, the order is that of arrival.
        self._somebody_waited = any(
            lane.has_waited(self._num_seen) for lane in self._lanes.values()
        )
        self._num_seen = self._num_arrived
        lane = self._first_lane()
        if lane is not None:
            lane.look()

    def ordered(self) -> Iterable[Waiting]:
        """The most important requests in the order in which they stand, up to the window."""
        lane = self._first_lane()
        return lane.ordered if lane is not None else ()

    def _first_lane(self) -> "_Lane | None":
        while self._lanes:
            first = min(self._lanes)
            if self._lanes[first]:
                return self._lanes[first]
            # Its deadlines are of no use to anybody any more.
            del self._lanes[first]
        return None

    def _lane(self, priority: int) -> "_Lane":
        lane = self._lanes.get(priority)
        if lane is None:
            lane = self._lanes[priority] = self._make_lane()
        return lane

    def _count_admission(self) -> None:
        given, self._last_given = self._last_given, None
        # Only now, as vLLM changes the status after it popped the request.
        if given is not None and given.request.status == RequestStatus.RUNNING:
            self._gate.on_admitted(given)
            if not given.is_resumed:
                self._lane(given.priority).on_admitted(given)

    def _choose(self) -> Waiting | None:
        """The request to try next, or None if there is none or all are held."""
        if not self._is_front_known:
            self._count_admission()
            lane = self._first_lane()
            self._front = lane.front(self._somebody_waited) if lane is not None else None
            self._is_front_known = True
        return self._front

    def _insert(self, entry: Waiting) -> None:
        self._entries[entry.request.request_id] = entry
        lane = self._lane(entry.priority)
        entry.is_resumed = entry.request.status == RequestStatus.PREEMPTED
        if entry.is_resumed:
            lane.resumed.appendleft(entry)
        else:
            lane.add(entry)
        self._is_front_known = False

    def _remove(self, entry: Waiting) -> None:
        del self._entries[entry.request.request_id]
        lane = self._lanes[entry.priority]
        if entry.is_resumed:
            lane.resumed.remove(entry)
        else:
            lane.remove(entry)
        self._is_front_known = False

    # ------------------------------------------------------------------ vLLM's interface

    def add_request(self, request: Request) -> None:
        self._num_arrived += 1
        priority = request.priority if self._by_priority else 0
        entry = Waiting(request, priority, self._num_arrived)
        entry.deadline = self._lane(priority).next_deadline()
        self._insert(entry)

    def prepend_request(self, request: Request) -> None:
        # Skipped in this step or, if it is new to the queue, preempted.
        entry = self._given.pop(request.request_id, None)
        if entry is not None:
            self._insert(entry)
        else:
            self.add_request(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.prepend_request(request)

    def peek_request(self) -> Request:
        front = self._choose()
        if front is None:
            raise IndexError("peek from a queue that gives out nothing")
        return front.request

    def pop_request(self) -> Request:
        front = self._choose()
        if front is None:
            raise IndexError("pop from a queue that gives out nothing")
        self._remove(front)
        self._given[front.request.request_id] = self._last_given = front
        return front.request

    def remove_request(self, request: Request) -> None:
        self.remove_requests((request,))

    def remove_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            entry = self._entries.get(request.request_id)
            if entry is not None:
                self._remove(entry)

    def __bool__(self) -> bool:
        """Whether there is a request to try now: held ones count for ``len()`` alone."""
        return self._choose() is not None

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Request]:
        for _, lane in sorted(self._lanes.items()):
            for entry in chain(lane.resumed, lane.arrivals):
                yield entry.request


_arrival = attrgetter("arrival")
_rank = attrgetter("rank")
_deadline = attrgetter("deadline", "arrival")


class _Lane:
    """The waiting requests of one priority.

    Attributes:
        resumed: those that ran before and were preempted, the next one first.
        arrivals: the others, in the order of arrival.
        ordered: the oldest of these, up to the window, by rank.
    """

    def __init__(self, probe: Probe, gate: Gate, patience: float) -> None:
        self._probe = probe
        self._gate = gate
        self._patience = patience
        self._num_admitted = 0
        self._by_deadline: list[Waiting] = []
        self.resumed: deque[Waiting] = deque()
        self.arrivals: list[Waiting] = []
        self.ordered: list[Waiting] = []

    def __bool__(self) -> bool:
        return bool(self.resumed or self.arrivals)

    def has_waited(self, num_seen: int) -> bool:
        """Whether a request that could have run did not, though it was among the first to come."""
        return any(
            entry.request.status == RequestStatus.WAITING
            for entry in takewhile(lambda entry: entry.arrival <= num_seen, self.arrivals)
        )

    def next_deadline(self) -> float:
        """The deadline of a request that arrives now."""
        return self._num_admitted + self._patience * (len(self.arrivals) + 1)

    def add(self, entry: Waiting) -> None:
        insort(self.arrivals, entry, key=_arrival)
        insort(self._by_deadline, entry, key=_deadline)
        if len(self.ordered) < WINDOW:
            entry.match = self._probe(entry.request)
            entry.rank = (-entry.num_cached_tokens, entry.arrival, entry.arrival)
            insort(self.ordered, entry, key=_rank)

    def remove(self, entry: Waiting) -> None:
        _discard(self.arrivals, entry, _arrival)
        _discard(self._by_deadline, entry, _deadline)
        _discard(self.ordered, entry, _rank)

    def look(self) -> None:
        """Rank those of the window anew.

        By cached prefix, the longest first; ties by the node in which it ends, that of the oldest
        request first; then by arrival.
        """
        window = self.arrivals[:WINDOW]
        oldest: dict[Any, int] = {}
        for entry in window:
            match = entry.match = self._probe(entry.request)
            group = oldest.setdefault(match.node if match is not None else None, entry.arrival)
            entry.rank = (-entry.num_cached_tokens, group, entry.arrival)
        window.sort(key=_rank)
        self.ordered = window

    def on_admitted(self, admitted: Waiting) -> None:
        """Count an admission; requests that share the admitted one's branch have more cached."""
        self._num_admitted += 1
        if admitted.match is None:
            return
        changed = False
        for entry in self.ordered:
            if entry.match is not None and entry.match.node is admitted.match.node:
                entry.match = self._probe(entry.request)
                rank = (-entry.num_cached_tokens, *entry.rank[1:])
                changed |= rank != entry.rank
                entry.rank = rank
        if changed:
            self.ordered.sort(key=_rank)

    def front(self, somebody_waited: bool) -> Waiting | None:
        """The request to try next, or None if all are held."""
        if self.resumed:
            return self.resumed[0]
        urgent = self._urgent()
        if urgent is not None:
            return urgent
        candidates = self.ordered if somebody_waited else self.arrivals
        return next((entry for entry in candidates if not self._gate.is_held(entry)), None)

    def _urgent(self) -> Waiting | None:
        """The request with the first deadline, if some deadline needs all admissions from now on.

        The j-th deadline must never be nearer than j admissions. A new request keeps that: its
        deadline is at least as many admissions away as there are requests, and those with later
        ones have a distance to spare. An admission keeps it if none was that near, or if it is the
        one of the first deadline.
        """
        latest = len(self._by_deadline)
        for position, entry in enumerate(self._by_deadline, 1):
            distance = entry.deadline - self._num_admitted
            if distance < position + 1:
                return self._by_deadline[0]
            if distance > latest:
                break
        return None


def _discard(entries: list[Waiting], entry: Waiting, key: Callable[[Waiting], Any]) -> None:
    """Take ``entry`` out of a list that is sorted by ``key``, which is unique."""
    at = bisect_left(entries, key(entry), key=key)
    if at < len(entries) and entries[at] is entry:
        del entries[at]
