# SPDX-License-Identifier: Apache-2.0
"""The radix tree: match, acquire, extend, release, evict, check.

The contract is in the docstring of :mod:`vllm_radix.tree`. In the costs below, *path* is the
number of nodes between the root and the node in question.
"""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from vllm_radix.tree import bookmark as bookmarks
from vllm_radix.tree.bookmark import Bookmark
from vllm_radix.tree.eviction import (
    EXPIRED,
    LRU,
    EvictionHeap,
    EvictionPolicy,
    RankedLeaves,
)
from vllm_radix.tree.key import TOKEN_BYTES, Key, Namespace
from vllm_radix.tree.node import Node, Root


@dataclass(frozen=True, slots=True)
class Match:
    """The longest cached prefix of a key. Holds nothing: see :meth:`RadixTree.is_void`."""

    node: Node
    """The node in whose span the match ends; a root if nothing matched."""
    num_tokens: int
    epoch: int
    """State of the tree that the match was found in."""
    version: int
    """State of the node that the match was found in."""


@dataclass(frozen=True, slots=True)
class Extension:
    """What became of the blocks that a request offered to the tree."""

    node: Node
    """The request's new handle: the node that ends where its cached tokens end."""
    num_duplicates: int
    """How many of the offered blocks, from the first, the tree holds in other copies, which are
    in use. They stay the request's own."""
    replaced: list[int]
    """Copies that nobody used: the offered blocks after the duplicates took their places, in this
    order."""
    freed: list[int]
    """Partly filled blocks that the offered ones supersede."""


class RadixTree:
    """Prefixes of any namespaces, the KV blocks that hold them, and who uses them.

    Args:
        block_size: tokens in a block, at least 1.
        num_block_ids: block ids are in ``[0, num_block_ids)``.
        policy: in which order unlocked leaves are evicted; LRU by default.

    Not safe for concurrent use.
    """

    def __init__(
        self, block_size: int, num_block_ids: int, policy: EvictionPolicy | None = None
    ) -> None:
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1, not {block_size}")
        self.block_size = block_size
        self.num_cached_blocks = 0
        """Blocks that nodes own."""
        self.num_evictable_blocks = 0
        """Those of them that no lock protects."""
        self._roots: dict[Namespace, Root] = {}
        self._detached: set[Node] = set()
        self._policy = policy or LRU()
        self._candidates = EvictionHeap(self._policy)
        self._clock = 0
        self._epoch = 0
        self._round = 1
        self._cell_of: list[list[Node] | None] = [None] * num_block_ids

    # ------------------------------------------------------------------ looking, which is not using

    def match(self, key: Key, limit: int | None = None) -> Match:
        """The longest cached prefix of ``key``, of at most ``limit`` tokens.

        Changes nothing: no age, no statistics. O(path + matched tokens), the tokens at the speed
        of ``memcmp``.
        """
        node = self._roots.get(key.namespace)
        if node is None:
            return Match(_NOWHERE, 0, self._epoch, _NOWHERE.version)
        return self._match_below(node, 0, key, _size(key, limit))

    def is_longest(self, match: Match, key: Key, limit: int | None = None) -> bool:
        """Whether an earlier match of ``key`` is still what :meth:`match` would find. O(1)."""
        node, num_tokens = match.node, match.num_tokens
        if node.version != match.version:
            return False
        if node is _NOWHERE:
            return key.namespace not in self._roots
        if limit is not None and num_tokens >= limit:
            return True
        tokens = key.tokens
        if num_tokens >= len(tokens):
            return True
        if num_tokens < node.end:
            at = (num_tokens - node.start) * TOKEN_BYTES
            return _first_token(node.edge, at) != tokens[num_tokens]
        return tokens[num_tokens] not in node.children

    def match_again(self, match: Match, key: Key, limit: int | None = None) -> Match:
        """:meth:`match` for a key that was matched before; compares only what may have changed."""
        node = match.node
        if node.version != match.version or node is _NOWHERE:
            return self.match(key, limit)
        if self.is_longest(match, key, limit):
            if match.epoch == self._epoch:
                return match
            return Match(node, match.num_tokens, self._epoch, match.version)
        size = _size(key, limit)
        start = node.start * TOKEN_BYTES
        position = start + _common_prefix(node.edge, key.data, start, size)
        if position < node.end * TOKEN_BYTES:
            return Match(node, position // TOKEN_BYTES, self._epoch, node.version)
        return self._match_below(node, position, key, size)

    def _match_below(self, node: Node, position: int, key: Key, size: int) -> Match:
        data, tokens = key.data, key.tokens
        while position < size:
            child = node.children.get(tokens[position // TOKEN_BYTES])
            if child is None:
                break
            node = child
            common = _common_prefix(child.edge, data, position, size)
            position += common
            if common < len(child.edge):
                break
        return Match(node, position // TOKEN_BYTES, self._epoch, node.version)

    def path_blocks(self, node: Node, num_blocks: int) -> list[int]:
        """The first ``num_blocks`` blocks of the prefix that ends with ``node``, in order.

        O(path + num_blocks), the blocks at the speed of a list copy.
        """
        if node.parent is None or node.start == 0:
            return node.blocks[:num_blocks]
        path = [node]
        while node.start > 0 and node.parent is not None:
            node = node.parent
            path.append(node)
        blocks: list[int] = []
        for part in reversed(path):
            blocks += part.blocks
        del blocks[num_blocks:]
        return blocks

    def owner(self, block: int) -> Node | None:
        """The node that owns ``block``, or None. O(1)."""
        cell = self._cell_of[block]
        return cell[0] if cell else None

    def block_after(self, match: Match, num_blocks: int) -> int | None:
        """The block of a match that comes after its first ``num_blocks``, full or not; or None.

        That is the block to copy for a request that goes on inside it. If the match ends where a
        node's children part inside the block, each of them has all of those tokens in a copy of
        its own, and the child that has been there longest is asked. O(1) for the last block of a
        match, but for nodes that end inside it; O(path) for others.
        """
        node = match.node
        while node.parent is not None and node.start // self.block_size > num_blocks:
            node = node.parent
        while True:
            index = num_blocks - node.start // self.block_size
            if index < len(node.blocks):
                return node.blocks[index]
            child = next(iter(node.children.values()), None)
            if child is None:
                return None
            node = child

    def is_void(self, match: Match) -> bool:
        """Whether the tree has changed since, so that the match may not be acquired."""
        return match.epoch != self._epoch

    def match_of_block(self, block: int) -> Match:
        """The match that ends with ``block``. O(blocks of its owner).

        Raises:
            KeyError: if no node owns the block.
        """
        node = self._owner_or_raise(block)
        return Match(node, self._end_of_block(node, block), self._epoch, node.version)

    def num_protected_blocks(self, node: Node, num_blocks: int) -> int:
        """How many of the first ``num_blocks`` blocks up to ``node`` are locked. O(path)."""
        part: Node | None = node
        while part is not None and part.lock_count == 0:
            part = part.parent
        if part is None or part.parent is None:
            return 0
        return min(num_blocks, part.start // self.block_size + len(part.blocks))

    # ------------------------------------------------------------------ using

    def enter(self, namespace: Namespace) -> Node:
        """Lock the root of a namespace for a request that matches nothing; return its handle."""
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = Root(namespace)
            _NOWHERE.growth += 1
        self._clock += 1
        root.last_access = self._clock
        self._lock(root)
        return root

    def acquire(self, match: Match, num_blocks: int, priority: int = 0) -> Node:
        """Lock the first ``num_blocks`` blocks of a match for a request; return its handle.

        The handle is a node that ends exactly there. Whoever holds it passes it to
        :meth:`extend` and at last to :meth:`release`. If the blocks end inside an edge, the edge
        is split: the matched part becomes recent and the rest keeps its age.

        O(path), and for a split the shorter side of the edge.

        Raises:
            ValueError: if the tree has changed since ``match`` was made, so that it is void, or
                if the match does not have that many blocks, or for no blocks (see
                :meth:`enter`).
        """
        num_tokens = num_blocks * self.block_size
        if self.is_void(match):
            raise ValueError("the match is void, the tree has changed since: look up again")
        if not 0 < num_tokens <= match.num_tokens:
            raise ValueError(f"a match of {match.num_tokens} tokens has no {num_blocks} blocks")
        node = match.node
        while node.start >= num_tokens:
            assert node.parent is not None
            node = node.parent
        if node.end > num_tokens:
            node = self._split(node, num_tokens)
        self._clock += 1
        path = self._lock_path(node)
        for part in path:
            part.last_access = self._clock
            part.hits += 1
            part.priority = min(part.priority, priority)
        self._merge_down(reversed(path))
        return node

    def hold(self, block: int) -> Node:
        """Lock the prefix up to and including ``block``; return a handle for :meth:`release`.

        A hold is no use: it changes no age, and neither should its release.

        O(path + blocks of the owner).

        Raises:
            KeyError: if no node owns the block.
        """
        node = self._owner_or_raise(block)
        end = self._end_of_block(node, block)
        if end < node.end:
            node = self._split(node, end)
        self._merge_down(reversed(self._lock_path(node)))
        return node

    def extend(self, node: Node, data: bytes, blocks: list[int], priority: int = 0) -> Extension:
        """Cache full blocks that follow a handle, and move the handle to their end.

        The tree takes the blocks that hold what it does not have yet, or has in copies that
        nobody uses: those go, since the request keeps its own anyway. A leaf that the handle alone
        locks grows in place, unless the policy values it differently from what is new; otherwise
        the new tokens become a child.

        Args:
            node: the handle. It ends at a multiple of the block size.
            data: the packed tokens that follow ``node.end``, a multiple of the block size.
            blocks: the request's blocks for those tokens.
            priority: the request's priority, for the policy of that name.

        Returns:
            The new handle, which replaces ``node``, and what became of the blocks.

        O(nodes passed + tokens and blocks given).
        """
        if not node.children:
            # What most do, most of the time.
            return Extension(self._give(node, data, blocks, priority), 0, [], [])
        first_block = node.end // self.block_size
        passed = [node]
        freed: list[int] = []
        position, superseded = self._descend(data, priority, passed)
        node = passed[-1]
        num_known = node.end // self.block_size - first_block
        replaced: list[int] = []
        for part in passed[1:]:
            if part.lock_count == 1 and part.blocks:
                # Nobody but this handle.
                first = part.start // self.block_size - first_block
                replaced += self._exchange(part, blocks[first : first + len(part.blocks)])
        marked = None
        if superseded is not None:
            marked, superseded.bookmarks = superseded.bookmarks, None
            self._detach(superseded, freed)
        if position < len(data):
            node = self._give(node, data[position:], blocks[num_known:], priority)
            if node is not passed[-1]:
                passed.append(node)
        for bookmark in marked or ():
            # It has the same tokens, and more.
            bookmarks.put(bookmark, node)
        self._merge_down(passed)
        return Extension(node, num_known - len(replaced), replaced, freed)

    def add_tail(self, node: Node, data: bytes, block: int, priority: int = 0) -> Extension:
        """Cache the partly filled last block of a request, and move its handle to the end.

        Like :meth:`extend`, for fewer tokens than a block holds. If the tree has all of these
        tokens already, ``block`` stays the request's own, and the handle moves only if the tree's
        block has no more than these. A shorter partly filled block that holds the same tokens
        gives way.
        """
        position, below, is_whole_edge = 0, node, True
        while position < len(data):
            child = below.children.get(_first_token(data, position))
            if child is None:
                break
            common = _common_prefix(child.edge, data, position, len(data))
            position += common
            below = child
            is_whole_edge = common == len(child.edge)
            if not is_whole_edge:
                break
        if position == len(data):
            passed = [node]
            if is_whole_edge and not below.children:
                self._descend(data, priority, passed)
                self._merge_down(passed)
            return Extension(passed[-1], 1, [], [])
        return self.extend(node, data, [block], priority)

    def release(self, node: Node, *, used: bool = True) -> list[int]:
        """Give a handle back. Its path becomes the most recently used.

        Args:
            node: the handle.
            used: False for a hold, whose path keeps its age.

        Returns:
            Blocks that are free now: those of nodes that had been detached.

        O(path + blocks returned).
        """
        self._clock += 1
        path = []
        part: Node | None = node
        while part is not None:
            assert part.lock_count > 0, f"{part} was released more often than locked"
            part.lock_count -= 1
            if used:
                part.last_access = self._clock
            if part.lock_count == 0:
                self.num_evictable_blocks += len(part.blocks)
            path.append(part)
            part = part.parent
        freed: list[int] = []
        self._merge_down(reversed(path))
        self._settle(node, freed)
        return freed

    # ------------------------------------------------------------------ marking

    def place(self, bookmark: Bookmark, node: Node) -> None:
        """Put a bookmark to the end of ``node``, from where the tree moves it as need be. O(1).

        Raises:
            ValueError: if nothing that can be found ends with ``node``.
        """
        if node.parent is None or node.detached:
            raise ValueError(f"{node} is the end of no cached prefix")
        self.remove(bookmark)
        bookmark.num_tokens = node.end
        bookmarks.put(bookmark, node)

    def remove(self, bookmark: Bookmark) -> None:
        """Take a bookmark out of the tree, unless it is gone already. O(1)."""
        if bookmark.node is not None:
            bookmarks.take(bookmark)

    # ------------------------------------------------------------------ making room

    def evict(self, num_blocks: int) -> list[int]:
        """Free ``num_blocks`` blocks, or all that can be if there are fewer.

        Takes unlocked leaves in the policy's order, the wanted ones last (see :meth:`want`), and
        each from its tail, so that a prefix is never left without its beginning, and never a
        block more than asked for.

        Returns:
            The ids, each prefix's last block first.

        O(blocks + leaves removed * log(candidates)), whatever the size of the tree.
        """
        freed: list[int] = []
        while (missing := num_blocks - len(freed)) > 0:
            leaf = self._candidates.first()
            if leaf is None:
                break
            num_kept = 0 if self._candidates.all_spared else self._num_wanted_blocks(leaf)
            if num_kept and num_kept + missing >= len(leaf.blocks):
                self._candidates.spare(leaf)
            if num_kept < len(leaf.blocks):
                above = leaf.parent
                self._trim(leaf, max(num_kept, len(leaf.blocks) - missing), freed)
                if leaf.parent is None and above is not None:
                    self._settle(above, freed)
        return freed

    def want(self, matches: Iterable[Match]) -> list[int]:
        """Say which prefixes are about to be used, in which order.

        They are evicted when nothing else is left, the last of them first. What was said before
        is forgotten. Locks nothing and refreshes no age.

        Args:
            matches: the next one to be used first. Void ones will do: what is gone is not wanted.

        Returns:
            For each match, how many evictable blocks it and those before it cover.

        O(matches + nodes on their paths).
        """
        self._round += 1
        self._candidates.end_sparing()
        num_covered = 0
        covered = []
        for place, match in enumerate(matches):
            part, end = match.node, min(match.num_tokens, match.node.end)
            while part.parent is not None and part.lock_count == 0:
                num_before = self._num_wanted_blocks(part)
                if part.wanted_round != self._round:
                    part.wanted_round, part.wanted_place = self._round, place
                elif end <= part.wanted_end:
                    # So is everything above.
                    break
                part.wanted_end = end
                num_covered += self._num_wanted_blocks(part) - num_before
                part = part.parent
                end = part.end
            covered.append(num_covered)
        return covered

    def _num_wanted_blocks(self, node: Node) -> int:
        if node.wanted_round != self._round:
            return 0
        return self.num_blocks_before(node, node.wanted_end)

    def num_blocks_before(self, node: Node, end: int) -> int:
        """How many of a node's blocks hold the tokens before ``end``. O(1)."""
        block_size = self.block_size
        num_blocks = -(-end // block_size) - node.start // block_size
        return min(max(num_blocks, 0), len(node.blocks))

    def expire(self, bookmark: Bookmark) -> None:
        """Let a prefix be evicted before all else, until it is used again.

        That is, from its end upwards, what only this prefix needs: up to where another one
        branches off or was used later, or another bookmark stands. What goes on from its end keeps
        its place in the order. Nothing happens to a prefix that is in use, or gone.

        O(path + log candidates), and for a split the shorter side of the edge.
        """
        node, end = bookmark.node, bookmark.num_tokens
        if node is None or node.lock_count:
            return
        if end < node.end:
            node = self._split(node, end)
        last_access = node.last_access
        expired: list[Node] = []
        while node.last_access <= last_access and not node.lock_count:
            others = [b.num_tokens for b in node.bookmarks or () if b.num_tokens < end]
            start = max(others, default=node.start)
            if start == node.end:
                break
            if start > node.start:
                self._split(node, start)
            expired.append(node)
            node.priority = EXPIRED
            if node.ticket:
                self._candidates.discard(node)
                self._candidates.add(node)
            assert node.parent is not None
            node = node.parent
            if node.parent is None or len(node.children) > 1:
                break
        self._merge_down([node, *reversed(expired)])

    def eviction_order(self) -> Iterator[int]:
        """The evictable blocks in the order in which :meth:`evict` would free them.

        For whoever wants to save blocks before they go. (Of what is wanted, nodes that merge
        meanwhile may go in another order.) The first one costs O(leaves). Not to be
        used while the tree changes.
        """
        num_children = {node: len(node.children) for node in self if node.lock_count == 0}
        leaves, wanted = self._candidates.unspared_copy(), self._candidates.spared_copy()
        for leaf in iter(leaves.pop, None):
            num_kept = self._num_wanted_blocks(leaf)
            yield from reversed(leaf.blocks[num_kept:])
            if num_kept:
                wanted.push(leaf)
            else:
                _push_parent(leaf, num_children, leaves)
        for leaf in iter(wanted.pop, None):
            yield from reversed(leaf.blocks[: self._num_wanted_blocks(leaf)])
            _push_parent(leaf, num_children, wanted)

    def detach(self, block: int) -> list[int]:
        """Make sure that no match finds ``block`` or anything that follows it.

        For KV that turned out to be wrong. Whoever has it locked keeps it until the release.

        Returns:
            The blocks that are free now.

        Raises:
            KeyError: if no node owns the block.
        """
        node = self._owner_or_raise(block)
        freed: list[int] = []
        if node.detached:
            return freed
        start = (node.start // self.block_size + node.blocks.index(block)) * self.block_size
        if start > node.start:
            self._split(node, start)
        above = node.parent
        assert above is not None
        self._detach(node, freed)
        self._settle(above, freed)
        return freed

    def clear(self) -> list[int]:
        """Forget everything.

        Returns:
            All blocks that the tree held.

        Raises:
            ValueError: if something is locked.
        """
        if any(root.lock_count for root in self._roots.values()):
            raise ValueError("the tree is in use: release every handle first")
        blocks = [block for node in self for block in node.blocks]
        self._file(blocks, None)
        for node in list(self):
            for bookmark in list(node.bookmarks or ()):
                bookmarks.take(bookmark)
            _bury(node)
        self._roots.clear()
        self._candidates.clear()
        self.num_cached_blocks = self.num_evictable_blocks = 0
        self._epoch += 1
        return blocks

    # ------------------------------------------------------------------ inside

    def __iter__(self) -> Iterator[Node]:
        """Every node that a match can reach, parents before children, the roots included."""
        for root in self._roots.values():
            yield from root.subtree()

    def all_nodes(self) -> Iterator[Node]:
        """Those, and the detached ones that are still in use."""
        yield from self
        for node in self._detached:
            yield from node.subtree()

    def _capacity(self, node: Node) -> int:
        """Tokens between the root and the end of the node's last block, were it full."""
        return (node.start // self.block_size + len(node.blocks)) * self.block_size

    def _owner_or_raise(self, block: int) -> Node:
        node = self.owner(block)
        if node is None:
            raise KeyError(f"no node owns block {block}")
        return node

    def _end_of_block(self, node: Node, block: int) -> int:
        """Tokens between the root and the end of one of the node's blocks."""
        position = node.start // self.block_size + node.blocks.index(block)
        return min((position + 1) * self.block_size, node.end)

    def _lock_path(self, node: Node) -> list[Node]:
        """Lock ``node`` and everything above it; return those, the lowest first."""
        path = []
        part: Node | None = node
        while part is not None:
            self._lock(part)
            path.append(part)
            part = part.parent
        return path

    def _lock(self, node: Node) -> None:
        if node.lock_count == 0:
            self.num_evictable_blocks -= len(node.blocks)
            self._candidates.discard(node)
        node.lock_count += 1

    def _descend(self, data: bytes, priority: int, passed: list[Node]) -> tuple[int, Node | None]:
        """Lock what the tree has of ``data`` below ``passed[-1]``, appending it to ``passed``.

        Splits where the two part. Returns the length of what was found, in bytes, and what follows
        there if that is a partly filled block which ``data`` goes beyond.
        """
        node = passed[-1]
        position = 0
        while position < len(data):
            child = node.children.get(_first_token(data, position))
            if child is None:
                break
            common = _common_prefix(child.edge, data, position, len(data))
            superseded = None
            if common < len(child.edge):
                child = self._split(child, child.start + common // TOKEN_BYTES)
            elif (
                child.end % self.block_size and not child.children and position + common < len(data)
            ):
                superseded = child
                tail_start = child.end // self.block_size * self.block_size
                child = self._split(child, tail_start) if tail_start > child.start else None
            if child is not None:
                self._lock(child)
                # In use from here on, as the handle is; both are refreshed on release.
                child.last_access = node.last_access
                child.priority = min(child.priority, priority)
                passed.append(child)
                position += len(child.edge)
                node = child
            if superseded is not None:
                return position, superseded
        return position, None

    def _exchange(self, node: Node, blocks: list[int]) -> list[int]:
        """Let other copies of the node's blocks take their places; return those that were there."""
        replaced, node.blocks = node.blocks, blocks
        self._file(replaced, None)
        self._file(blocks, node.cell)
        self._epoch += 1
        return replaced

    def _give(self, node: Node, data: bytes, blocks: list[int], priority: int) -> Node:
        """Append tokens and blocks below a handle; return the node that ends with them."""
        node.growth += 1
        if (
            node.parent is not None
            and node.lock_count == 1
            and not node.children
            and self._policy.ranks_alike(node, priority)
        ):
            node.edge += data
            node.blocks += blocks
        else:
            leaf = Node(node, node.end, bytearray(data), blocks)
            leaf.lock_count = 1
            leaf.last_access = node.last_access
            leaf.priority = priority
            leaf.detached = node.detached
            node.children[leaf.first] = leaf
            node = leaf
        self.num_cached_blocks += len(blocks)
        self._file(blocks, node.cell)
        return node

    def _file(self, blocks: list[int], cell: list[Node] | None) -> None:
        cell_of = self._cell_of
        for block in blocks:
            cell_of[block] = cell

    def _split(self, node: Node, at: int) -> Node:
        """Cut ``node`` at token ``at``; return the new upper node, ``node`` is the lower one."""
        cut = (at - node.start) * TOKEN_BYTES
        num_upper_blocks = at // self.block_size - node.start // self.block_size
        upper = Node(node.parent, node.start, bytearray(), [])
        node.version += 1
        # Copy the shorter side and cut the longer one in place.
        if cut <= len(node.edge) - cut:
            upper.edge = node.edge[:cut]
            del node.edge[:cut]
        else:
            upper.edge, node.edge = node.edge, node.edge[cut:]
            del upper.edge[cut:]
        upper.blocks = node.blocks[:num_upper_blocks]
        del node.blocks[:num_upper_blocks]
        if len(upper.blocks) <= len(node.blocks):
            self._file(upper.blocks, upper.cell)
        else:
            upper.cell, node.cell = node.cell, upper.cell
            upper.cell[0], node.cell[0] = upper, node
            self._file(node.blocks, node.cell)
        upper.lock_count = node.lock_count
        upper.last_access = node.last_access
        upper.hits = node.hits
        upper.priority = node.priority
        upper.wanted_end = min(node.wanted_end, at)
        upper.wanted_place = node.wanted_place
        upper.wanted_round = node.wanted_round
        upper.detached = node.detached
        upper.children[node.first] = node
        if node.bookmarks:
            bookmarks.share(node, upper)
        assert upper.parent is not None
        if upper.parent.children.get(upper.first) is node:
            upper.parent.children[upper.first] = upper
        if node in self._detached:
            self._detached.remove(node)
            self._detached.add(upper)
        node.parent = upper
        node.start = at
        return upper

    def _merge_down(self, nodes: Iterable[Node]) -> None:
        """Merge each of ``nodes``, parents first, with its only child where nothing is lost."""
        for node in nodes:
            if len(node.children) == 1 and node.parent is not None:
                self._merge_with_child(node)

    def _merge_with_child(self, upper: Node) -> None:
        """Merge a node with its only child, which stays the object that it was.

        Not if a handle ends between them (their lock counts differ then), nor if the policy ranks
        the child below: it has to go first. O(tokens and blocks of the child).
        """
        (child,) = upper.children.values()
        if child.lock_count != upper.lock_count or self._policy.rank(child) != self._policy.rank(
            upper
        ):
            return
        above = upper.parent
        assert above is not None
        if len(upper.blocks) <= len(child.blocks):
            self._file(upper.blocks, child.cell)
        else:
            self._file(child.blocks, upper.cell)
            child.cell = upper.cell
            child.cell[0] = child
        upper.edge += child.edge
        upper.blocks += child.blocks
        child.edge, child.blocks = upper.edge, upper.blocks
        child.start = upper.start
        child.parent = above
        child.last_access = max(child.last_access, upper.last_access)
        child.hits = max(child.hits, upper.hits)
        child.priority = min(child.priority, upper.priority)
        if child.wanted_round != self._round:
            child.wanted_end, child.wanted_round = upper.wanted_end, upper.wanted_round
        # If both are wanted, neither goes before its time.
        child.wanted_place = upper.wanted_place
        if above.children.get(child.first) is upper:
            above.children[child.first] = child
        if upper in self._detached:
            self._detached.remove(upper)
            self._detached.add(child)
        if upper.bookmarks:
            bookmarks.hand_over(upper, child)
        _bury(upper)
        self._epoch += 1

    def _trim(self, leaf: Node, num_blocks: int, freed: list[int]) -> None:
        """Leave an unlocked leaf its first ``num_blocks`` blocks; none: it leaves the tree."""
        gone = leaf.blocks[num_blocks:]
        freed += reversed(gone)
        self._file(gone, None)
        self.num_cached_blocks -= len(gone)
        self.num_evictable_blocks -= len(gone)
        leaf.version += 1
        if num_blocks:
            end = (leaf.start // self.block_size + num_blocks) * self.block_size
            if end < leaf.end:
                del leaf.blocks[num_blocks:]
                del leaf.edge[(end - leaf.start) * TOKEN_BYTES :]
                self._epoch += 1
                if leaf.bookmarks:
                    bookmarks.cut(leaf, leaf)
            return
        self._epoch += 1
        above = leaf.parent
        assert above is not None
        if above.children.get(leaf.first) is leaf:
            del above.children[leaf.first]
        self._detached.discard(leaf)
        self._candidates.discard(leaf)
        if leaf.bookmarks:
            bookmarks.cut(leaf, above)
        _bury(leaf)

    def _settle(self, node: Node, freed: list[int]) -> None:
        """Put right what the loss of a lock or of a child left behind at ``node``."""
        while True:
            above = node.parent
            if above is None:
                # A root stays for as long as it has children or a request that will add some.
                if isinstance(node, Root) and not node.children and node.lock_count == 0:
                    del self._roots[node.namespace]
                    node.version += 1
                return
            if node.children:
                self._merge_down([node])
                return
            if node.lock_count:
                end = self._capacity(node)
                if node.detached or node.end <= end:
                    return
                # Only what was detached below it holds the block in which it ends.
                if end > node.start:
                    self._split(node, end)
                    self._detach(node, freed)
                    return
                self._detach(node, freed)
            elif node.detached:
                self._trim(node, 0, freed)
            else:
                if node.end > self._capacity(node):
                    # Its children held the block in which it ends: its last piece is gone.
                    self._trim(node, len(node.blocks), freed)
                if node.parent is not None:
                    if not node.ticket:
                        self._candidates.add(node)
                    return
            node = above

    def _detach(self, node: Node, freed: list[int]) -> None:
        """Take the subtree of ``node`` out of every match's reach; free what nobody locks."""
        above = node.parent
        assert above is not None
        del above.children[node.first]
        self._detached.add(node)
        self._epoch += 1
        subtree = list(node.subtree())
        for part in reversed(subtree):
            part.detached = True
            part.version += 1
            self._candidates.discard(part)
            if part.bookmarks:
                bookmarks.cut(part, above)
            if part.lock_count == 0:
                self._trim(part, 0, freed)
        self._merge_down(subtree)

    # ------------------------------------------------------------------ checking

    def check(self) -> None:
        """Verify every invariant by a walk of the whole tree.

        Raises:
            AssertionError: naming the first one that does not hold.
        """
        block_size = self.block_size
        owners: dict[int, Node] = {}
        num_evictable = num_candidates = 0
        for namespace, root in self._roots.items():
            assert root.namespace == namespace
            assert root.parent is None and not root.edge and not root.blocks
            assert root.children or root.lock_count, f"{namespace} has an idle root"
        reachable = set(self)
        for node in self.all_nodes():
            assert node.lock_count >= 0
            assert node.detached == (node not in reachable)
            for first, child in node.children.items():
                assert child.first == first, f"{child} is filed under {first}"
                assert child.parent is node
                assert child.start == node.end
            assert sum(c.lock_count for c in node.children.values()) <= node.lock_count
            assert node.bookmarks is None or (node.bookmarks and not node.detached)
            for bookmark in node.bookmarks or ():
                assert bookmark.node is node, f"a bookmark in {node} is lost"
                assert node.start < bookmark.num_tokens <= node.end
            if node.parent is None:
                continue
            assert node.edge and len(node.edge) % TOKEN_BYTES == 0
            num_full_blocks = node.end // block_size - node.start // block_size
            has_tail = len(node.blocks) == num_full_blocks + 1
            assert has_tail or len(node.blocks) == num_full_blocks, f"{node} lacks a block"
            if has_tail:
                assert node.end % block_size and not node.children, f"{node} holds a copy"
            elif not node.children and not node.lock_count:
                assert node.end % block_size == 0, f"{node} ends without a block"
            for block in node.blocks:
                assert block not in owners, f"block {block} has two owners"
                owners[block] = node
            if node.lock_count == 0:
                num_evictable += len(node.blocks)
                assert not node.detached
            is_candidate = node.lock_count == 0 and not node.children
            assert bool(node.ticket) == is_candidate, f"{node} is misplaced in the heap"
            num_candidates += is_candidate
            if len(node.children) == 1:
                (child,) = node.children.values()
                assert child.lock_count != node.lock_count or self._policy.rank(
                    child
                ) != self._policy.rank(node), f"{node} ought to be one with {child}"
        assert len(owners) == self.num_cached_blocks
        assert num_evictable == self.num_evictable_blocks
        assert num_candidates == len(self._candidates)
        for block, node in owners.items():
            assert self.owner(block) is node, f"block {block} does not find its owner"


# Where the match of a namespace without a root ends.
_NOWHERE = Node(None, 0, bytearray(), [])


def _push_parent(leaf: Node, num_children: dict[Node, int], leaves: RankedLeaves) -> None:
    """``leaf`` is taken out: its parent is a leaf if that was the last child."""
    above = leaf.parent
    if above in num_children and above.parent is not None:
        num_children[above] -= 1
        if not num_children[above]:
            leaves.push(above)


def _size(key: Key, limit: int | None) -> int:
    """Bytes of ``key`` to be matched."""
    return len(key.data) if limit is None else min(len(key.data), limit * TOKEN_BYTES)


def _first_token(data: bytes | bytearray, position: int) -> int:
    return int.from_bytes(data[position : position + TOKEN_BYTES], sys.byteorder, signed=True)


def _common_prefix(edge: bytearray, data: bytes, position: int, size: int) -> int:
    """Length of the LCP of ``edge`` and ``data[position:size]``, in bytes of whole tokens."""
    length = len(edge)
    if position + length <= size:
        if data.startswith(edge, position):
            return length
    else:
        length = size - position
    num_tokens = length // TOKEN_BYTES
    differ = np.frombuffer(edge, np.int32, num_tokens) != np.frombuffer(
        data, np.int32, num_tokens, position
    )
    at = int(differ.argmax())
    return at * TOKEN_BYTES if differ[at] else length


def _bury(node: Node) -> None:
    """Empty a node that left the tree, so that whoever still points to it keeps nothing alive."""
    node.version += 1
    node.edge = bytearray()
    node.blocks = []
    node.children = {}
    node.parent = None
