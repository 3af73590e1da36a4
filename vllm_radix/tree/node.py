# SPDX-License-Identifier: Apache-2.0
"""One node of the tree: an edge, the blocks it owns, and its place."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Optional

from vllm_radix.tree.key import TOKEN_BYTES, Namespace

if TYPE_CHECKING:
    from vllm_radix.tree.bookmark import Bookmark


class Node:
    """A span of tokens below a parent. Only :class:`~vllm_radix.tree.tree.RadixTree` changes it.

    Attributes:
        parent: the node above; None for a root and for a node that left the tree.
        children: by first token of the child's edge.
        start: tokens between the root and this edge.
        edge: the packed int32 tokens of the edge. A bytearray: appending to it and cutting its
            front are amortised O(1) per token.
        blocks: ids of the owned blocks, in order. Block ``blocks[i]`` holds the tokens of block
            ``start // block_size + i`` of the prefix.
        lock_count: handles that end at this node or below it.
        last_access: tick of the tree's clock at the last use.
        hits: how many matches were acquired through this node.
        priority: the most important (lowest) request priority that used this node.
        detached: not to be found any more; the blocks go free with the last lock.
        ticket: this node's entry in the eviction heap; 0 if it has none.
        cell: a list of one, this node. The tree files blocks under the cell of their node, so that
            a split or a merge has to visit the blocks of one side only.
        version: changes whenever tokens of the edge leave this node, so that a match which was
            found to end in it may end elsewhere.
        growth: changes whenever the edge or the children grow, so that such a match may be longer.
        wanted_end: until which token, counted from the root, the edge is wanted (see
            :meth:`~vllm_radix.tree.tree.RadixTree.want`).
        wanted_place: its place in the order of what is wanted.
        wanted_round: when the two were said. They mean nothing once others were.
        bookmarks: those whose prefixes end in this span, in a dict for its order; None if there
            are none.
    """

    __slots__ = (
        "blocks",
        "bookmarks",
        "cell",
        "children",
        "detached",
        "edge",
        "growth",
        "hits",
        "last_access",
        "lock_count",
        "parent",
        "priority",
        "start",
        "ticket",
        "version",
        "wanted_end",
        "wanted_place",
        "wanted_round",
    )

    def __init__(
        self, parent: Optional["Node"], start: int, edge: bytearray, blocks: list[int]
    ) -> None:
        self.parent = parent
        self.children: dict[int, Node] = {}
        self.start = start
        self.edge = edge
        self.blocks = blocks
        self.lock_count = 0
        self.last_access = 0
        self.hits = 0
        self.priority = 0
        self.detached = False
        self.ticket = 0
        self.cell: list[Node] = [self]
        self.version = 0
        self.growth = 0
        self.wanted_end = 0
        self.wanted_place = 0
        self.wanted_round = 0
        self.bookmarks: dict[Bookmark, None] | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens on the edge."""
        return len(self.edge) // TOKEN_BYTES

    @property
    def end(self) -> int:
        """Tokens between the root and the end of this edge."""
        return self.start + len(self.edge) // TOKEN_BYTES

    @property
    def first(self) -> int:
        """First token of the edge: this node's key among its parent's children."""
        return int.from_bytes(self.edge[:TOKEN_BYTES], sys.byteorder, signed=True)

    def subtree(self) -> Iterator["Node"]:
        """This node and all below it, parents before children. Not to be changed meanwhile."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def __repr__(self) -> str:
        return (
            f"Node([{self.start}, {self.end}), {len(self.blocks)} blocks, "
            f"{len(self.children)} children, lock_count={self.lock_count})"
        )


class Root(Node):
    """Where the prefixes of a namespace begin: a node without tokens or blocks."""

    __slots__ = ("namespace",)

    def __init__(self, namespace: Namespace) -> None:
        super().__init__(None, 0, bytearray(), [])
        self.namespace = namespace
