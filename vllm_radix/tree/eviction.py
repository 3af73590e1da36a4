# SPDX-License-Identifier: Apache-2.0
"""Which unlocked leaf goes first: policies, and the heap that serves them."""

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from vllm_radix.tree.node import Node

EXPIRED = 1 << 31
"""The priority of what goes before all else: no request has a greater one."""


class EvictionPolicy(ABC):
    """Ranks leaves: the lowest rank is evicted first.

    What only unimportant requests used goes first: priorities are vLLM's, a lower value is more
    important. The policies differ in how they rank leaves of one priority. A rank may depend on
    what a use changes (``last_access``, ``hits``, ``priority``) and on nothing else: it is taken
    once, when a node becomes an unlocked leaf.
    """

    name: ClassVar[str]

    def rank(self, node: Node) -> tuple[int, Any]:
        """A sortable rank."""
        return -node.priority, self.rank_by_use(node)

    @abstractmethod
    def rank_by_use(self, node: Node) -> Any:
        """A sortable rank among leaves of one priority, of the same type for every node."""

    def ranks_alike(self, node: Node, priority: int) -> bool:
        """Whether tokens that a request of ``priority`` adds now rank as ``node`` does."""
        return node.priority == priority


class LRU(EvictionPolicy):
    """Least recently used first."""

    name = "lru"

    def rank_by_use(self, node: Node) -> int:
        return node.last_access


class LFU(EvictionPolicy):
    """Least frequently used first, the least recent of those first."""

    name = "lfu"

    def rank_by_use(self, node: Node) -> tuple[int, int]:
        return node.hits, node.last_access

    def ranks_alike(self, node: Node, priority: int) -> bool:
        return node.hits == 0 and super().ranks_alike(node, priority)


class SLRU(LFU):
    """Segmented LRU: what was never reused goes before anything that was.

    A burst of prompts seen once cannot flush the prefixes that are shared.
    """

    name = "slru"

    def rank_by_use(self, node: Node) -> tuple[int, int]:
        return int(node.hits > 0), node.last_access


class Priority(LRU):
    """Least recently used first, where a request's priority is that of its prefix as well.

    The tree makes no difference between this and LRU; whoever gives it priorities does.
    """

    name = "priority"


POLICIES: dict[str, type[EvictionPolicy]] = {p.name: p for p in (LRU, LFU, SLRU, Priority)}


def make_policy(name: str) -> EvictionPolicy:
    """The policy called ``name``.

    Raises:
        ValueError: if there is none of that name.
    """
    try:
        return POLICIES[name]()
    except KeyError:
        raise ValueError(
            f"unknown eviction policy {name!r}: choose one of {', '.join(POLICIES)}"
        ) from None


Entry = tuple[Any, int, Node]
"""A rank, the ticket that its node had then, and the node."""


class EvictionHeap:
    """The unlocked leaves of a tree in eviction order, for as long as the tree lives.

    Leaving the heap is lazy: a node that stops being a candidate only drops its ticket, and its
    entry is skipped when it surfaces. Entries without a ticket never outnumber the others by
    more than 64, so every operation is amortised O(log candidates).
    """

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy
        self._entries: list[Entry] = []
        self._spared: list[Entry] = []
        self._next_ticket = 1
        self._num_candidates = 0
        self.all_spared = False
        """Whether nothing but spared candidates was left when :meth:`first` was asked last."""

    def __len__(self) -> int:
        return self._num_candidates

    def add(self, node: Node) -> None:
        """Make ``node`` a candidate; it must not be one already."""
        ticket = node.ticket = self._next_ticket
        self._next_ticket = ticket + 1
        self._num_candidates += 1
        # Tickets are unique, so a comparison never reaches the nodes.
        heapq.heappush(self._entries, (self._policy.rank(node), ticket, node))

    def discard(self, node: Node) -> None:
        """``node`` is no candidate any more. Amortised O(1)."""
        if node.ticket:
            node.ticket = 0
            self._num_candidates -= 1
            if len(self._entries) > 2 * self._num_candidates + 64:
                self._entries = _valid(self._entries)
                heapq.heapify(self._entries)

    def first(self) -> Node | None:
        """The candidate to evict first, or None. It stays in the heap."""
        self.all_spared = False
        for entries in (self._entries, self._spared):
            while entries:
                _, ticket, node = entries[0]
                if node.ticket == ticket:
                    return node
                heapq.heappop(entries)
            self.all_spared = True
        return None

    def spare(self, node: Node) -> None:
        """Put the first candidate, which is ``node``, behind all that are not spared."""
        _, ticket, first = heapq.heappop(self._entries)
        assert first is node
        heapq.heappush(self._spared, (self._spared_rank(node), ticket, node))

    def end_sparing(self) -> None:
        """Put the spared candidates back to where they were. O(spared * log(candidates))."""
        for _, ticket, node in self._spared:
            if node.ticket == ticket:
                heapq.heappush(self._entries, (self._policy.rank(node), ticket, node))
        self._spared.clear()

    def _spared_rank(self, node: Node) -> Any:
        # Of what is wanted, the last to be used is evicted first.
        return -node.wanted_place, self._policy.rank(node)

    def unspared_copy(self) -> "RankedLeaves":
        """The candidates that are not spared, to be taken out in order. O(candidates)."""
        return RankedLeaves(self._policy.rank, _valid(self._entries), self._next_ticket)

    def spared_copy(self) -> "RankedLeaves":
        """The spared candidates, to be taken out in order. O(spared)."""
        return RankedLeaves(self._spared_rank, _valid(self._spared), self._next_ticket)

    def clear(self) -> None:
        """Forget every candidate."""
        for _, ticket, node in self._entries + self._spared:
            if node.ticket == ticket:
                node.ticket = 0
        self._entries.clear()
        self._spared.clear()
        self._num_candidates = 0


def _valid(entries: list[Entry]) -> list[Entry]:
    """Those whose nodes are still candidates."""
    return [entry for entry in entries if entry[2].ticket == entry[1]]


class RankedLeaves:
    """A heap of nodes in eviction order that leaves the nodes as they are."""

    def __init__(self, rank: Callable[[Node], Any], entries: list[Entry], next_ticket: int) -> None:
        self._rank = rank
        self._entries = entries
        self._next_ticket = next_ticket
        heapq.heapify(entries)

    def push(self, node: Node) -> None:
        """Add a node behind those of its rank."""
        heapq.heappush(self._entries, (self._rank(node), self._next_ticket, node))
        self._next_ticket += 1

    def pop(self) -> Node | None:
        """Take out the first, or None if there is none."""
        return heapq.heappop(self._entries)[2] if self._entries else None
