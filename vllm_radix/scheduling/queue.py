# SPDX-License-Identifier: Apache-2.0
"""The waiting queue, ordered by what is cached.

``schedule()`` of vLLM peeks at the front, then pops it or skips it; so an order of our own needs
no change to it. The rule and its bound are explained in ``docs/scheduling.md``.
"""

from array import array
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, takewhile
from operator import attrgetter
from typing import Any, Protocol

import numpy as np
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


class Probe(Protocol):
    """Says what is cached of a request. Asking changes nothing."""

    def find(self, request: Request) -> CachedPrefix | None:
        """The longest cached prefix; None if the request may not read the cache."""

    def state(self, node: Any) -> object:
        """Another value as soon as a prefix that ended at ``node`` may end elsewhere. O(1)."""

    def lacking(self, request: Request, prefix: CachedPrefix) -> Hashable:
        """What would have to be cached behind the prefix for it to be longer. O(1)."""

    def changed(self, node: Any, before: Any, lacking: Iterable[Hashable]) -> list[Hashable]:
        """Whose prefixes may end elsewhere than at ``node``, since its state was ``before``.

        Args:
            node: where prefixes ended.
            before: its state then.
            lacking: what the requests lacked.

        Returns:
            Those of ``lacking`` for which another prefix may be found now. O(lacking).
        """


class Encoder(Protocol):
    """Says what of a request's images and the like has to be encoded. Asking changes nothing."""

    def num_to_encode(self, request: Request, num_cached_tokens: int) -> int:
        """How many items lie beyond the cached prefix and have no output in the encoder cache."""


@dataclass(eq=False, slots=True)
class Waiting:
    """A request in the queue.

    Attributes:
        priority: its lane: lower is more important; 0 for all unless vLLM schedules by priority.
        arrival: its place in the order of arrival, whatever happened to it since.
        is_resumed: it was admitted before, and lost its blocks again.
        deadline: by which admission of its lane it has to be admitted.
        match: its longest cached prefix when the queue looked last.
        lacks: what would have to be cached for that to be longer.
        is_ordered: it is in the window.
        rank: sorts the requests in the window.
        num_tokens_ahead: evictable tokens that only those ahead of it are about to use.
    """

    request: Request
    priority: int
    arrival: int
    is_resumed: bool = False
    deadline: float = 0.0
    match: CachedPrefix | None = None
    lacks: Hashable = None
    is_ordered: bool = False
    rank: tuple[int, int, int, int] = (0, 0, 0, 0)
    num_tokens_ahead: int = 0

    @property
    def num_cached_tokens(self) -> int:
        """Tokens of the longest cached prefix."""
        return _num_tokens(self.match)


class Gate(Protocol):
    """Decides whether a request had better wait although there is room for it."""

    is_open: bool
    """Whether nobody is ever held."""

    def is_held(self, waiting: Waiting) -> bool:
        """Whether starting the request now would cost more than it gains. O(1)."""

    def on_admitted(self, waiting: Waiting) -> None:
        """The request was started."""


class PrefixAffinityQueue(RequestQueue):
    """Gives out the resumed requests first, then by cached prefix, and nobody too late.

    Args:
        probe: says what is cached of a request.
        gate: may hold requests back; they are in the queue, but not given out for now.
        encoder: knows which images need no encoding; such requests go before equals.
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
        encoder: Encoder,
        *,
        patience: float,
        by_priority: bool,
    ) -> None:
        self._gate = gate
        self._by_priority = by_priority
        self._make_lane = partial(_Lane, probe, gate, encoder, patience)
        self._lanes: dict[int, _Lane] = {}
        self._entries: dict[str, Waiting] = {}
        self._num_arrived = 0
        # How many had arrived when the last step started.
        self._num_seen = 0
        # Given out in this step and not counted as admitted: those that are skipped come back.
        self._given: dict[str, Waiting] = {}
        self._last_given: Waiting | None = None
        # What `_choose` found, until something changes.
        self._front: Waiting | None = None
        self._is_front_known = False
        # The lane whose order is up to date.
        self._looked: _Lane | None = None
        self._somebody_waited = False

    def start_step(self) -> None:
        """Forget what is known of the order, and count what the last step admitted."""
        self._last_given = None
        # What was skipped has come back by now. The rest runs, waits for KV from elsewhere, or has
        # even finished.
        for entry in list(self._given.values()):
            self._count(entry)
        # Nobody needs the count of an empty lane.
        self._lanes = {priority: lane for priority, lane in self._lanes.items() if lane}
        self._is_front_known = False
        self._looked = None
        # Where everybody finds room at once, the order is that of arrival.
        self._somebody_waited = any(
            lane.has_waited(self._num_seen) for lane in self._lanes.values()
        )
        self._num_seen = self._num_arrived

    def ordered(self) -> Iterable[Waiting]:
        """The most important requests in the order in which they stand, up to the window.

        See :meth:`_Lane.look` for the cost.
        """
        lane = self._first_lane()
        return lane.ordered if lane is not None else ()

    def look_again(self) -> None:
        """Forget what was found in the cache: something else may be found for any request."""
        for lane in self._lanes.values():
            lane.look_again()
        self._is_front_known = False

    def _first_lane(self) -> "_Lane | None":
        """The requests of the most important priority, in an order that is up to date."""
        first = min((priority for priority, lane in self._lanes.items() if lane), default=None)
        if first is None:
            return None
        lane = self._lanes[first]
        if lane is not self._looked:
            lane.look()
            self._looked = lane
        return lane

    def _lane(self, priority: int) -> "_Lane":
        lane = self._lanes.get(priority)
        if lane is None:
            lane = self._lanes[priority] = self._make_lane()
        return lane

    def _count_admission(self) -> None:
        given, self._last_given = self._last_given, None
        # Only now, as vLLM changes the status after it popped the request.
        if given is not None and given.request.status in _ADMITTED:
            self._count(given)

    def _count(self, admitted: Waiting) -> None:
        del self._given[admitted.request.request_id]
        self._gate.on_admitted(admitted)
        if not admitted.is_resumed:
            self._lane(admitted.priority).on_admitted(admitted)

    def _choose(self) -> Waiting | None:
        """The request to try next, or None if there is none or all are held."""
        if not self._is_front_known:
            self._count_admission()
            lane = self._first_lane()
            self._front = lane.front(self._somebody_waited) if lane is not None else None
            self._is_front_known = True
        return self._front

    def _insert(self, entry: Waiting) -> None:
        request_id = entry.request.request_id
        before = self._entries.get(request_id)
        if before is not None:
            # A streaming session that was preempted and gets its next input.
            self._remove(before)
        self._entries[request_id] = entry
        lane = self._lane(entry.priority)
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
        self._insert(self._arrive(request, request.status == RequestStatus.PREEMPTED))

    def prepend_request(self, request: Request) -> None:
        # Skipped in this step or, if the queue does not know it, admitted before: preempted, or its
        # KV failed to come.
        entry = self._given.pop(request.request_id, None)
        self._insert(entry or self._arrive(request, is_resumed=True))

    def _arrive(self, request: Request, is_resumed: bool) -> Waiting:
        self._num_arrived += 1
        priority = request.priority if self._by_priority else 0
        deadline = self._lane(priority).next_deadline()
        return Waiting(request, priority, self._num_arrived, is_resumed, deadline)

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
        return bool(self._entries) if self._gate.is_open else self._choose() is not None

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Request]:
        for _, lane in sorted(self._lanes.items()):
            for entry in chain(lane.resumed, lane.arrivals):
                yield entry.request


_arrival = attrgetter("arrival")
_rank = attrgetter("rank")
_deadline = attrgetter("deadline", "arrival")

_ADMITTED = (RequestStatus.RUNNING, RequestStatus.WAITING_FOR_REMOTE_KVS)
"""What becomes of a request that is given out, unless it is skipped."""

_MAX_PASSED_OVER = 64
"""How many held requests are passed over in search of one that is not."""


class _Branch:
    """The requests of a lane whose cached prefixes end at one node.

    Attributes:
        groups: them, by what they lack: what makes the prefix of one longer does so for its group.
        seniority: the arrival of its first request; a branch keeps it as long as it has any.
        state: what the probe said of the node before any of the prefixes was looked up.
    """

    __slots__ = ("groups", "seniority", "state")

    def __init__(self, seniority: int, state: object) -> None:
        self.seniority = seniority
        self.state = state
        self.groups: dict[Hashable, dict[Waiting, None]] = {}


class _Deadlines:
    """Requests in the order of their deadlines, and whether the first one is urgent."""

    def __init__(self) -> None:
        self._entries: list[Waiting] = []
        # The deadlines alone, to be compared all at once with 1, 2, ....
        self._admissions = array("d")
        self._places = np.arange(1, 65)

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: Waiting) -> None:
        at = bisect_left(self._entries, _deadline(entry), key=_deadline)
        self._entries.insert(at, entry)
        self._admissions.insert(at, entry.deadline)

    def discard(self, entry: Waiting) -> None:
        at = bisect_left(self._entries, _deadline(entry), key=_deadline)
        assert self._entries[at] is entry
        del self._entries[at], self._admissions[at]

    def urgent(self, num_admitted: int) -> Waiting | None:
        """The request with the first deadline, if some deadline needs all admissions from now on.

        The j-th deadline must never be nearer than j admissions. A new request keeps that: its
        deadline is at least as many admissions away as there are requests, and those with later
        ones have a distance to spare. An admission keeps it if none was that near, or if it is the
        one of the first deadline.
        """
        if not self._entries:
            return None
        number = len(self._entries)
        if number > len(self._places):
            self._places = np.arange(1, 2 * number + 1)
        distances = np.frombuffer(self._admissions) - num_admitted
        return self._entries[0] if (distances - self._places[:number]).min() < 1 else None


class _Lane:
    """The waiting requests of one priority.

    Attributes:
        resumed: those that ran before and were preempted, the next one first.
        arrivals: the others, in the order of arrival.
        ordered: the oldest of these, up to the window, by rank: the longest cached prefix first;
            then the fewest items to encode; then by branch, the most senior first; then by arrival.
    """

    def __init__(self, probe: Probe, gate: Gate, encoder: Encoder, patience: float) -> None:
        self._probe = probe
        self._gate = gate
        self._encoder = encoder
        self._patience = patience
        self._num_admitted = 0
        self._deadlines = _Deadlines()
        self._branches: dict[Any, _Branch] = {}
        # Those of the window that have images or the like.
        self._with_items: dict[Waiting, None] = {}
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
        self._deadlines.add(entry)
        if len(self.arrivals) <= WINDOW or entry.arrival <= self.arrivals[WINDOW - 1].arrival:
            self._place(entry, self._probe.find(entry.request))

    def remove(self, entry: Waiting) -> None:
        _discard(self.arrivals, entry, _arrival)
        self._deadlines.discard(entry)
        if entry.is_ordered:
            self._displace(entry)

    def look(self) -> None:
        """Bring the order up to date.

        O(branches + groups of those that changed + requests of groups that did + requests with
        images).
        """
        for node, branch in list(self._branches.items()):
            before, branch.state = branch.state, self._state(node)
            if branch.state != before:
                for lacks in self._probe.changed(node, before, branch.groups):
                    self._look_at(branch.groups[lacks])
        for entry in list(self._with_items):
            if entry.rank[1] != self._num_to_encode(entry):
                match = entry.match
                self._displace(entry)
                self._place(entry, match)
        if len(self.ordered) < min(WINDOW, len(self.arrivals)):
            for entry in self.arrivals[:WINDOW]:
                if not entry.is_ordered:
                    self._place(entry, self._probe.find(entry.request))

    def look_again(self) -> None:
        """Look up every request of the window."""
        for entry in list(self.ordered):
            self._displace(entry)
            self._place(entry, self._probe.find(entry.request))

    def on_admitted(self, admitted: Waiting) -> None:
        """Count an admission; those that lacked the same as the admitted one have it now."""
        self._num_admitted += 1
        branch = self._branches.get(_node(admitted.match))
        group = branch.groups.get(admitted.lacks) if branch is not None else None
        if group is not None:
            self._look_at(group)

    def front(self, somebody_waited: bool) -> Waiting | None:
        """The request to try next, or None if all are held."""
        if self.resumed:
            return self.resumed[0]
        urgent = self._deadlines.urgent(self._num_admitted)
        if urgent is not None:
            return urgent
        candidates = islice(self.ordered if somebody_waited else self.arrivals, _MAX_PASSED_OVER)
        return next((entry for entry in candidates if not self._gate.is_held(entry)), None)

    def _state(self, node: Any) -> object:
        # There is no node for those that may not read the cache, and nothing changes for them.
        return self._probe.state(node) if node is not None else None

    def _look_at(self, group: Iterable[Waiting]) -> None:
        for entry in list(group):
            match = self._probe.find(entry.request)
            if _node(match) is _node(entry.match) and _num_tokens(match) == _num_tokens(
                entry.match
            ):
                entry.match = match
            else:
                self._displace(entry)
                self._place(entry, match)

    def _place(self, entry: Waiting, match: CachedPrefix | None) -> None:
        entry.match = match
        entry.is_ordered = True
        node = _node(match)
        branch = self._branches.get(node)
        if branch is None:
            branch = self._branches[node] = _Branch(entry.arrival, self._state(node))
        entry.lacks = self._probe.lacking(entry.request, match) if match is not None else None
        branch.groups.setdefault(entry.lacks, {})[entry] = None
        num_to_encode = 0
        if entry.request.mm_features:
            self._with_items[entry] = None
            num_to_encode = self._num_to_encode(entry)
        entry.rank = (-entry.num_cached_tokens, num_to_encode, branch.seniority, entry.arrival)
        insort(self.ordered, entry, key=_rank)

    def _num_to_encode(self, entry: Waiting) -> int:
        return self._encoder.num_to_encode(entry.request, entry.num_cached_tokens)

    def _displace(self, entry: Waiting) -> None:
        entry.is_ordered = False
        self._with_items.pop(entry, None)
        _discard(self.ordered, entry, _rank)
        node = _node(entry.match)
        branch = self._branches[node]
        group = branch.groups[entry.lacks]
        del group[entry]
        if not group:
            del branch.groups[entry.lacks]
            if not branch.groups:
                del self._branches[node]


def _node(match: CachedPrefix | None) -> Any:
    return match.node if match is not None else None


def _num_tokens(match: CachedPrefix | None) -> int:
    return match.num_tokens if match is not None else 0


def _discard(entries: list[Waiting], entry: Waiting, key: Callable[[Waiting], Any]) -> None:
    """Take ``entry`` out of a list that is sorted by ``key``, which is unique."""
    at = bisect_left(entries, key(entry), key=key)
    assert entries[at] is entry
    del entries[at]
