# SPDX-License-Identifier: Apache-2.0
"""Which unlocked leaf goes first: policies, and the heap that serves them."""

import heapq
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from vllm_radix.tree.node import Node


class EvictionPolicy(ABC):
    """Ranks leaves: the lowest rank is evicted first.

    A rank may depend on what a use changes (``last_access``, ``hits``, ``priority``) and on
    nothing else: it is taken once, when a node becomes an unlocked leaf.
    """

    name: ClassVar[str]

    @abstractmethod
    def rank(self, node: Node) -> Any:
        """A sortable rank, of the same type for every node."""

    def ranks_alike(self, node: Node, priority: int) -> bool:
        """Whether tokens that a request of ``priority`` adds now rank as ``node`` does."""
        return node.hits == 0


class LRU(EvictionPolicy):
    """Least recently used first."""

    name = "lru"

    def rank(self, node: Node) -> int:
        return node.last_access

    def ranks_alike(self, node: Node, priority: int) -> bool:
        return True


class LFU(EvictionPolicy):
    """Least frequently used first, the least recent of those first."""

    name = "lfu"

    def rank(self, node: Node) -> tuple[int, int]:
        return node.hits, node.last_access


class SLRU(EvictionPolicy):
    """Segmented LRU: what was never reused goes before anything that was.

    A burst of prompts seen once cannot flush the prefixes that are shared.
    """

    name = "slru"

    def rank(self, node: Node) -> tuple[bool, int]:
        return node.hits > 0, node.last_access


class Priority(EvictionPolicy):
    """What only unimportant requests used goes first, the least recent of those first.

    Priorities are vLLM's: a lower value is more important.
    """

    name = "priority"

    def rank(self, node: Node) -> tuple[int, int]:
        return -node.priority, node.last_access

    def ranks_alike(self, node: Node, priority: int) -> bool:
        return node.priority == priority


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


class EvictionHeap:
    """The unlocked leaves of a tree in eviction order, for as long as the tree lives.

    Leaving the heap is lazy: a node that stops being a candidate only drops its ticket, and its
    entry is skipped when it surfaces. Entries without a ticket never outnumber the others by
    more than 64, so every operation is amortised O(log candidates).
    """

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy
        self._entries: list[tuple[Any, int, Node]] = []
        self._next_ticket = 1
        self._num_candidates = 0

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
                self._entries = [entry for entry in self._entries if entry[2].ticket == entry[1]]
                heapq.heapify(self._entries)

    def first(self) -> Node | None:
        """The candidate to evict first, or None. It stays in the heap."""
        entries = self._entries
        while entries:
            _, ticket, node = entries[0]
            if node.ticket == ticket:
                return node
            heapq.heappop(entries)
        return None

    def copy(self) -> "RankedLeaves":
        """The candidates, to be taken out in order without being changed. O(candidates)."""
        entries = [entry for entry in self._entries if entry[2].ticket == entry[1]]
        return RankedLeaves(self._policy, entries, self._next_ticket)

    def clear(self) -> None:
        """Forget every candidate."""
        for _, ticket, node in self._entries:
            if node.ticket == ticket:
                node.ticket = 0
        self._entries.clear()
        self._num_candidates = 0


class RankedLeaves:
    """A heap of nodes in eviction order that leaves the nodes as they are."""

    def __init__(
        self, policy: EvictionPolicy, entries: list[tuple[Any, int, Node]], next_ticket: int
    ) -> None:
        self._policy = policy
        self._entries = entries
        self._next_ticket = next_ticket
        heapq.heapify(entries)

    def push(self, node: Node) -> None:
        """Add a node behind those of its rank."""
        heapq.heappush(self._entries, (self._policy.rank(node), self._next_ticket, node))
        self._next_ticket += 1

    def pop(self) -> Node | None:
        """Take out the first, or None if there is none."""
        return heapq.heappop(self._entries)[2] if self._entries else None
