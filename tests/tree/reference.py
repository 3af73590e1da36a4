# SPDX-License-Identifier: Apache-2.0
"""What :class:`~vllm_radix.tree.RadixTree` promises, in the slowest and plainest way.

There are no edges and no counters here. A cached block is an object that knows its own tokens and
the block before it; a handle is the last block that it covers; everything else is found by looking
at all blocks.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from vllm_radix.tree import Namespace
from vllm_radix.tree.eviction import EXPIRED

Tokens = tuple[int, ...]


@dataclass(eq=False)
class Cached:
    """One cached block, or (without a block before it) the beginning of a namespace."""

    before: "Cached | None"
    tokens: Tokens
    block: int
    after: dict[Tokens, "Cached"] = field(default_factory=dict)
    """The blocks that follow and that a match can find, by their tokens."""
    age: int = 0
    hits: int = 0
    priority: int = 0

    def path(self) -> list["Cached"]:
        """The blocks of the prefix that ends with this one, in order."""
        if self.before is None:
            return []
        return [*self.before.path(), self]

    def prefix(self) -> Tokens:
        return tuple(token for part in self.path() for token in part.tokens)

    def can_be_found(self) -> bool:
        return self.before is None or (
            self.before.after.get(self.tokens) is self and self.before.can_be_found()
        )


RANKS: dict[str, Callable[[Cached], Any]] = {
    "lru": lambda part: (-part.priority, part.age),
    "lfu": lambda part: (-part.priority, part.hits, part.age),
    "slru": lambda part: (-part.priority, part.hits > 0, part.age),
    "priority": lambda part: (-part.priority, part.age),
}


class Reference:
    """The model of a tree. Handles are small integers; blocks are the caller's ids."""

    def __init__(self, block_size: int, policy: str = "lru") -> None:
        self.block_size = block_size
        self.rank = RANKS[policy]
        self.beginnings: dict[Namespace, Cached] = {}
        self.cached: dict[int, Cached] = {}
        """Every owned block by its id, whether a match can find it or not."""
        self.handles: dict[int, Cached] = {}
        self.clock = 0
        self.num_departures = 0
        """How often something ceased to be found."""

    # ------------------------------------------------------------------ looking

    def match(self, namespace: Namespace, tokens: Tokens, limit: int | None = None) -> int:
        """The length of the longest prefix for which there is KV in some block."""
        tokens = tokens[:limit]
        at, length = self._beginning(namespace), 0
        while (step := at.after.get(tokens[length : length + self.block_size])) is not None:
            at = step
            length += len(step.tokens)
            if len(step.tokens) < self.block_size:
                return length
        return length + max((common(tokens[length:], t) for t in at.after), default=0)

    def path(self, namespace: Namespace, tokens: Tokens, num_blocks: int) -> list[Cached]:
        """The cached blocks that hold the first blocks of a prompt."""
        at = self._beginning(namespace)
        for k in range(num_blocks):
            at = at.after[tokens[k * self.block_size : (k + 1) * self.block_size]]
        return at.path()

    def locked(self) -> set[Cached]:
        return {part for last in self.handles.values() for part in last.path()}

    def evictable(self) -> list[Cached]:
        locked = self.locked()
        return [part for part in self.cached.values() if part not in locked]

    def findable(self) -> list[Cached]:
        return [part for part in self.cached.values() if part.can_be_found()]

    # ------------------------------------------------------------------ using

    def acquire(
        self, namespace: Namespace, tokens: Tokens, num_blocks: int, priority: int = 0
    ) -> int:
        path = self.path(namespace, tokens, num_blocks)
        for part in path:
            part.hits += 1
            part.priority = min(part.priority, priority)
        return self._new_handle(path[-1] if path else self._beginning(namespace))

    def hold(self, block: int) -> int:
        return self._new_handle(self.cached[block])

    def extend(
        self, handle: int, tokens: Tokens, blocks: list[int], priority: int = 0
    ) -> tuple[int, list[int]]:
        """Returns how many blocks are duplicates, and which are free now."""
        size = self.block_size
        pieces = [tokens[i : i + size] for i in range(0, len(tokens), size)]
        at, locked = self.handles[handle], self.locked()
        num_known = num_duplicates = 0
        freed = []
        while num_known < len(pieces) and pieces[num_known] in at.after:
            at = at.after[pieces[num_known]]
            at.priority = min(at.priority, priority)
            if at in locked:
                num_duplicates += 1
            else:
                # Nobody uses this copy; the new one is in use.
                freed.append(at.block)
                del self.cached[at.block]
                at.block = blocks[num_known]
                self.cached[at.block] = at
            num_known += 1
        for piece, block in list(zip(pieces, blocks, strict=True))[num_known:]:
            # A block that holds less of the same gives way. There can be only one.
            for shorter in [t for t in at.after if t == piece[: len(t)]]:
                self._lose(at.after[shorter])
            at.after[piece] = self.cached[block] = Cached(at, piece, block, priority=priority)
            at = at.after[piece]
        self.handles[handle] = at
        return num_duplicates, freed + self._collect()

    def add_tail(
        self, handle: int, tokens: Tokens, block: int, priority: int = 0
    ) -> tuple[int, list[int]]:
        after = self.handles[handle].after
        if tokens in after:
            self.handles[handle] = after[tokens]
            after[tokens].priority = min(after[tokens].priority, priority)
            return 1, []
        if any(t[: len(tokens)] == tokens for t in after):
            return 1, []
        return self.extend(handle, tokens, [block], priority)

    def release(self, handle: int, used: bool = True) -> list[int]:
        """Returns the blocks that are free now, in no order."""
        last = self.handles.pop(handle)
        if used:
            self.clock += 1
            for part in last.path():
                part.age = self.clock
        return self._collect()

    # ------------------------------------------------------------------ making room

    def eviction_order(self) -> list[int]:
        """All evictable blocks: from each prefix the last, and of these the lowest in rank."""
        order: list[int] = []
        left = self.evictable()
        while left:
            last_ones = [part for part in left if all(other.before is not part for other in left)]
            victim = min(last_ones, key=self.rank)
            assert sum(self.rank(part) == self.rank(victim) for part in last_ones) == 1
            order.append(victim.block)
            left.remove(victim)
        return order

    def expire(self, namespace: Namespace, tokens: Tokens, num_kept: int) -> None:
        """Of the blocks that end within a prefix, those go first that only this prefix needs.

        Beyond the first ``num_kept`` tokens, for which somebody else still asks.
        """
        path = self.path(namespace, tokens, len(tokens) // self.block_size)
        at = path[-1] if path else self._beginning(namespace)
        at = at.after.get(tokens[len(at.prefix()) :], at)
        locked, age = self.locked(), at.age
        while len(at.prefix()) > num_kept and at not in locked and at.age <= age:
            at.priority = EXPIRED
            assert at.before is not None
            at = at.before
            if len(at.after) > 1:
                break

    def evict(self, num_blocks: int) -> list[int]:
        """Returns the blocks, in order."""
        freed = self.eviction_order()[:num_blocks]
        self.lose(freed)
        return freed

    def lose(self, blocks: list[int]) -> list[int]:
        """Evict these blocks; returns those that are free now, in no order."""
        for block in blocks:
            self._lose(self.cached[block])
        return self._collect()

    def detach(self, block: int) -> list[int]:
        """Returns the blocks that are free now, in no order."""
        part = self.cached[block]
        if part.can_be_found():
            self._lose(part)
        return self._collect()

    def clear(self) -> list[int]:
        """Returns all blocks, in no order."""
        assert not self.handles
        blocks = list(self.cached)
        for beginning in self.beginnings.values():
            beginning.after.clear()
        self.num_departures += 1
        self._collect()
        return blocks

    # ------------------------------------------------------------------ inside

    def _beginning(self, namespace: Namespace) -> Cached:
        return self.beginnings.setdefault(namespace, Cached(None, (), -1))

    def _new_handle(self, last: Cached) -> int:
        handle = max(self.handles, default=0) + 1
        self.handles[handle] = last
        return handle

    def _followers(self, part: Cached) -> list[Cached]:
        return [other for other in self.cached.values() if other.before is part]

    def _lose(self, part: Cached) -> None:
        """No match finds the block, nor what follows it, from now on."""
        assert part.before is not None
        if part.can_be_found():
            self.num_departures += 1
        if part.before.after.get(part.tokens) is part:
            del part.before.after[part.tokens]

    def _collect(self) -> list[int]:
        """Free what can neither be found nor is in use."""
        gone = [part for part in self.evictable() if not part.can_be_found()]
        for part in gone:
            del self.cached[part.block]
            self._lose(part)
        return [part.block for part in gone]


def common(a: Tokens, b: Tokens) -> int:
    """The length of the longest common prefix."""
    length = 0
    while length < min(len(a), len(b)) and a[length] == b[length]:
        length += 1
    return length
