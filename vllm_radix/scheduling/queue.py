# SPDX-License-Identifier: Apache-2.0
"""The waiting queue, ordered by what is cached.

``schedule()`` of vLLM peeks at the front, then pops it or skips it; so an order of our own needs
no change to it. The rule and its bound are explained in ``docs/scheduling.md``.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request, RequestStatus

from vllm_radix.scheduling.lane import EncoderCache, Gate, Lane, Probe, Waiting

_ADMITTED = (RequestStatus.RUNNING, RequestStatus.WAITING_FOR_REMOTE_KVS)
"""What becomes of a request that is given out, unless it is skipped."""


class PrefixAffinityQueue(RequestQueue):
    """Gives out the resumed requests first, then who is late, then by cached prefix.

    Args:
        probe: says what is cached of a request.
        gate: may hold requests back; they are in the queue, but not given out for now.
        encoder_cache: knows which images need no encoding; such requests go before equals.
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
        encoder_cache: EncoderCache,
        *,
        patience: float,
        by_priority: bool,
    ) -> None:
        self._gate = gate
        self._by_priority = by_priority
        self._make_lane = partial(Lane, probe, gate, encoder_cache, patience)
        self._lanes: dict[int, Lane] = {}
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
        self._looked: Lane | None = None
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

        See :meth:`Lane.look` for the cost.
        """
        lane = self._first_lane()
        return lane.ordered if lane is not None else ()

    def look_again(self) -> None:
        """Forget what was found in the cache: something else may be found for any request."""
        for lane in self._lanes.values():
            lane.look_again()
        self._is_front_known = False

    def look_again_at(self, request: Request) -> None:
        """A request has other tokens or images now. It may be unknown here."""
        entry = self._entries.get(request.request_id)
        if entry is not None:
            self._lanes[entry.priority].look_again_at(entry)
            self._is_front_known = False

    def _first_lane(self) -> "Lane | None":
        """The requests of the most important priority, in an order that is up to date."""
        first = min((priority for priority, lane in self._lanes.items() if lane), default=None)
        if first is None:
            return None
        lane = self._lanes[first]
        if lane is not self._looked:
            lane.look()
            self._looked = lane
        return lane

    def _lane(self, priority: int) -> "Lane":
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

    def _remove(self, entry: Waiting, is_given: bool = False) -> None:
        del self._entries[entry.request.request_id]
        lane = self._lanes[entry.priority]
        if entry.is_resumed:
            lane.resumed.remove(entry)
        elif is_given:
            lane.give(entry)
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
        lane = self._lane(priority)
        return Waiting(
            request,
            priority,
            self._num_arrived,
            is_resumed,
            arrived_after=lane.num_admitted,
            waited_before=lane.num_waited,
            deadline=lane.next_deadline(),
        )

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
        self._remove(front, is_given=True)
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
