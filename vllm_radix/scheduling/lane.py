# SPDX-License-Identifier: Apache-2.0
"""The order of the waiting requests of one priority, and the bound on everybody's wait.

The rule and the proof of its bound are in ``docs/scheduling.md`` and at :class:`Deadlines`.
"""

from array import array
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass
from itertools import chain, islice, takewhile
from operator import attrgetter
from typing import Any, Protocol

import numpy as np
from vllm.v1.request import Request, RequestStatus

WINDOW = 1024
"""How many waiting requests, the oldest, are ordered. Those behind them wait to become old."""

_MAX_PASSED_OVER = 64
"""How many held requests are passed over in search of one that is not."""

LATE = 2.0
"""How many times as long as is usual, in admissions, a request waits before it is late.

``python -m benchmarks.patience`` measures other values.
"""


class CachedPrefix(Protocol):
    """What a probe finds, such as a :class:`~vllm_radix.tree.Match`."""

    @property
    def num_tokens(self) -> int:
        """How long it is."""

    @property
    def node(self) -> Any:
        """Where it ends."""


class Probe(Protocol):
    """Says what is cached of a request. Asking changes nothing."""

    def find(self, request: Request) -> CachedPrefix | None:
        """The longest cached prefix; None if the request may not read the cache."""

    def cohort(self, prefix: CachedPrefix) -> tuple[Any, int]:
        """Where the prefix ends for the purpose of the order, and its length up to there.

        Too few tokens to make a difference don't count.
        """

    def num_reused(self, prefix: CachedPrefix) -> int:
        """How many of its tokens a request need not compute, at most. O(1)."""

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


class EncoderCache(Protocol):
    """Says which images and the like need not be encoded. Asking changes nothing."""

    def identifiers(self) -> Collection[str]:
        """Of the items whose encoder outputs are cached."""


def num_to_encode(request: Request, num_reused: int, encoded: Collection[str]) -> int:
    """How many items a request needs beyond its reused prefix that are not encoded. O(items)."""
    needed = set()
    for feature in request.mm_features:
        position = feature.mm_position
        first = max(num_reused - position.offset, 0)
        if first < position.length and feature.identifier not in encoded:
            # Of an item that is reused in part, there may be nothing left but text in it.
            start, end = position.get_embeds_indices_in_range(first, position.length)
            if start < end:
                needed.add(feature.identifier)
    return len(needed)


@dataclass(eq=False, slots=True)
class Waiting:
    """A request in the queue.

    Attributes:
        priority: its lane: lower is more important; 0 for all unless vLLM schedules by priority.
        arrival: its place in the order of arrival, whatever happened to it since.
        is_resumed: it was admitted before, and lost its blocks again.
        is_given: it was given out to be admitted, or to be skipped and come back.
        arrived_after: the lane's ``num_admitted`` when it arrived.
        waited_before: the lane's ``num_waited`` when it arrived.
        deadline: by which admission of its lane it has to be admitted.
        match: its longest cached prefix when the queue looked last.
        lacks: what would have to be cached for that to be longer.
        cohort: where that ends for the purpose of the order: those of one cohort go together.
        items: the identifiers of its images and the like.
        is_ordered: it is in the window.
        rank: sorts the requests in the window.
    """

    request: Request
    priority: int
    arrival: int
    is_resumed: bool = False
    is_given: bool = False
    arrived_after: int = 0
    waited_before: int = 0
    deadline: float = 0.0
    match: CachedPrefix | None = None
    lacks: Hashable = None
    cohort: Any = None
    items: frozenset[str] = frozenset()
    is_ordered: bool = False
    rank: tuple[int, int, int, int] = (0, 0, 0, 0)

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


_arrival = attrgetter("arrival")
_rank = attrgetter("rank")
_deadline = attrgetter("deadline", "arrival")


class _Branch:
    """The requests of a lane whose cached prefixes end at one node.

    Attributes:
        groups: them, by what they lack: what makes the prefix of one longer does so for its group.
        state: what the probe said of the node before any of the prefixes was looked up.
    """

    __slots__ = ("groups", "state")

    def __init__(self, state: object) -> None:
        self.state = state
        self.groups: dict[Hashable, dict[Waiting, None]] = {}


@dataclass(slots=True)
class _Cohort:
    """The requests of a lane that go together.

    Attributes:
        seniority: the arrival of the first of them; kept as long as there are any.
        size: how many there are.
    """

    seniority: int
    size: int = 0


class Deadlines:
    """Requests in the order of their deadlines, and which of them is urgent.

    Those that are given out count until they are admitted: who is skipped needs a turn later.
    """

    def __init__(self) -> None:
        self._entries: list[Waiting] = []
        # The deadlines alone, to be compared all at once with 1, 2, ....
        self._admissions = array("d")
        self._places = np.arange(1, 65)

    def add(self, entry: Waiting) -> None:
        at = bisect_left(self._entries, _deadline(entry), key=_deadline)
        self._entries.insert(at, entry)
        self._admissions.insert(at, entry.deadline)

    def discard(self, entry: Waiting) -> None:
        at = bisect_left(self._entries, _deadline(entry), key=_deadline)
        assert self._entries[at] is entry
        del self._entries[at], self._admissions[at]

    def urgent(self, num_admitted: int) -> Waiting | None:
        """Who goes next, if some deadline needs all admissions from now on.

        The j-th deadline must never be nearer than j admissions. A new request keeps that: its
        deadline is at least as many admissions away as there are requests, and those with later
        ones have a distance to spare. An admission keeps it if none was that near, or if it is the
        one of the first deadline. If that one is given out already, the next one goes that is not,
        up to the last deadline that is so near.
        """
        if not self._entries:
            return None
        number = len(self._entries)
        if number > len(self._places):
            self._places = np.arange(1, 2 * number + 1)
        distances = np.frombuffer(self._admissions) - num_admitted
        slack = distances - self._places[:number]
        if slack.min() >= 1:
            return None
        last = np.flatnonzero(slack < 1)[-1]
        return next((e for e in self._entries[: last + 1] if not e.is_given), None)


class Lane:
    """The waiting requests of one priority.

    Attributes:
        resumed: those that were admitted before and lost their blocks, the next one first.
        arrivals: the others, in the order of arrival.
        ordered: the oldest of these, up to the window, by rank: the longest cached prefix first;
            then the fewest items to encode; then by cohort, the most senior first; then by arrival.
        num_admitted: how many were admitted so far.
        num_waited: how many were waiting at each of these admissions, all added up.
    """

    def __init__(
        self, probe: Probe, gate: Gate, encoder_cache: EncoderCache, patience: float
    ) -> None:
        self._probe = probe
        self._gate = gate
        self._encoder_cache = encoder_cache
        self._patience = patience
        self._deadlines = Deadlines()
        self._branches: dict[Any, _Branch] = {}
        self._cohorts: dict[Any, _Cohort] = {}
        # Those of the window that have an item, by its identifier; and what they were ranked by:
        # the identifiers of the encoder cache.
        self._having: dict[str, dict[Waiting, None]] = {}
        self._encoded: frozenset[str] = frozenset()
        self.resumed: deque[Waiting] = deque()
        self.arrivals: list[Waiting] = []
        self.ordered: list[Waiting] = []
        self.num_admitted = 0
        self.num_waited = 0

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
        return self.num_admitted + self._patience * (len(self.arrivals) + 1)

    def add(self, entry: Waiting) -> None:
        """Take in a request that arrives, or one that was given out and comes back."""
        insort(self.arrivals, entry, key=_arrival)
        if entry.is_given:
            entry.is_given = False
        else:
            self._deadlines.add(entry)
        if len(self.arrivals) <= WINDOW or entry.arrival <= self.arrivals[WINDOW - 1].arrival:
            self._place(entry, self._probe.find(entry.request))

    def remove(self, entry: Waiting) -> None:
        """Forget a request that waits."""
        self._take_out(entry)
        self._deadlines.discard(entry)

    def give(self, entry: Waiting) -> None:
        """A request is given out; it comes back, or is admitted."""
        self._take_out(entry)
        entry.is_given = True

    def _take_out(self, entry: Waiting) -> None:
        _discard(self.arrivals, entry, _arrival)
        if entry.is_ordered:
            self._displace(entry)

    def look(self) -> None:
        """Bring the order up to date.

        O(branches + groups of those that changed + requests of groups that did + items in the
        encoder cache + requests with those that came or went there).
        """
        for node, branch in list(self._branches.items()):
            before, branch.state = branch.state, self._state(node)
            if branch.state != before:
                for lacks in self._probe.changed(node, before, branch.groups):
                    self._look_at(branch.groups[lacks])
        if self._having:
            before = self._encoded
            self._encoded = frozenset(self._encoder_cache.identifiers())
            for identifier in before ^ self._encoded:
                for entry in list(self._having.get(identifier, ())):
                    self._move(entry, entry.match)
        if len(self.ordered) < min(WINDOW, len(self.arrivals)):
            for entry in self.arrivals[:WINDOW]:
                if not entry.is_ordered:
                    self._place(entry, self._probe.find(entry.request))

    def look_again(self) -> None:
        """Look up every request of the window."""
        for entry in list(self.ordered):
            self.look_again_at(entry)

    def look_again_at(self, entry: Waiting) -> None:
        """Look up a request, if it is in the window, and give it the place that it has now."""
        if entry.is_ordered:
            self._move(entry, self._probe.find(entry.request))

    def on_admitted(self, admitted: Waiting) -> None:
        """Count an admission; those that lacked the same as the admitted one have it now."""
        self._deadlines.discard(admitted)
        self.num_admitted += 1
        self.num_waited += len(self.arrivals) + 1
        branch = self._branches.get(_node(admitted.match))
        group = branch.groups.get(admitted.lacks) if branch is not None else None
        if group is not None:
            self._look_at(group)

    def front(self, by_prefix: bool) -> Waiting | None:
        """The request to try next, or None if all are held.

        Args:
            by_prefix: whether the cached prefix comes before arrival.
        """
        if self.resumed:
            return self.resumed[0]
        urgent = self._deadlines.urgent(self.num_admitted)
        if urgent is not None:
            return urgent
        # Those behind one that is not late can be so only if the queue shrank meanwhile.
        late = takewhile(self._is_late, islice(self.arrivals, _MAX_PASSED_OVER))
        others = islice(self.ordered if by_prefix else self.arrivals, _MAX_PASSED_OVER)
        candidates = chain(late, others)
        return next((entry for entry in candidates if not self._gate.is_held(entry)), None)

    def _is_late(self, entry: Waiting) -> bool:
        """Whether the request has waited for much longer than is usual.

        Counted in admissions, since seconds would make everybody late in overload. Usual is what
        Little's law (1961) says of any order: as many admissions as requests waited, on average
        over the time that this one did.
        """
        num_admitted = self.num_admitted - entry.arrived_after
        num_waited = self.num_waited - entry.waited_before
        return num_admitted**2 > LATE * num_waited

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
                self._move(entry, match)

    def _move(self, entry: Waiting, match: CachedPrefix | None) -> None:
        self._displace(entry)
        self._place(entry, match)

    def _place(self, entry: Waiting, match: CachedPrefix | None) -> None:
        entry.match = match
        entry.is_ordered = True
        node = _node(match)
        branch = self._branches.get(node)
        if branch is None:
            branch = self._branches[node] = _Branch(self._state(node))
        entry.lacks, entry.cohort, num_tokens = None, None, 0
        if match is not None:
            entry.lacks = self._probe.lacking(entry.request, match)
            entry.cohort, num_tokens = self._probe.cohort(match)
        branch.groups.setdefault(entry.lacks, {})[entry] = None
        num_missing = 0
        # A session may get more of them while it waits.
        entry.items = frozenset(feature.identifier for feature in entry.request.mm_features)
        if entry.items:
            for identifier in entry.items:
                self._having.setdefault(identifier, {})[entry] = None
            num_reused = self._probe.num_reused(match) if match is not None else 0
            num_missing = num_to_encode(entry.request, num_reused, self._encoded)
        cohort = self._cohorts.setdefault(entry.cohort, _Cohort(entry.arrival))
        cohort.size += 1
        entry.rank = (-num_tokens, num_missing, cohort.seniority, entry.arrival)
        insort(self.ordered, entry, key=_rank)

    def _displace(self, entry: Waiting) -> None:
        entry.is_ordered = False
        for identifier in entry.items:
            having = self._having[identifier]
            del having[entry]
            if not having:
                del self._having[identifier]
        _discard(self.ordered, entry, _rank)
        node = _node(entry.match)
        branch = self._branches[node]
        group = branch.groups[entry.lacks]
        del group[entry]
        if not group:
            del branch.groups[entry.lacks]
            if not branch.groups:
                del self._branches[node]
        cohort = self._cohorts[entry.cohort]
        cohort.size -= 1
        if not cohort.size:
            del self._cohorts[entry.cohort]


def _node(match: CachedPrefix | None) -> Any:
    return match.node if match is not None else None


def _num_tokens(match: CachedPrefix | None) -> int:
    return match.num_tokens if match is not None else 0


def _discard(entries: list[Waiting], entry: Waiting, key: Callable[[Waiting], Any]) -> None:
    """Take ``entry`` out of a list that is sorted by ``key``, which is unique."""
    at = bisect_left(entries, key(entry), key=key)
    assert entries[at] is entry
    del entries[at]
