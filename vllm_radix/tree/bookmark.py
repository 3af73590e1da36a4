# SPDX-License-Identifier: Apache-2.0
"""The end of a prefix, wherever the tree moves it."""

from vllm_radix.tree.node import Node


class Bookmark:
    """Marks the end of a cached prefix. Locks nothing and refreshes no age.

    Nodes are split, merged and replaced; whoever wants to know later what became of a prefix gives
    the tree a bookmark (:meth:`~vllm_radix.tree.tree.RadixTree.place`) instead of keeping the node.

    Attributes:
        node: the node in whose span the prefix ends: ``node.start < num_tokens <= node.end``. None
            before it is placed, and once the prefix is gone.
        num_tokens: tokens between the root and the end of the prefix.
        survives_cut: what happens when the last tokens of the prefix leave the tree. Either the
            bookmark moves to the end of what is left of it, or it is gone with them.
    """

    __slots__ = ("node", "num_tokens", "survives_cut")

    def __init__(self, *, survives_cut: bool) -> None:
        self.node: Node | None = None
        self.num_tokens = 0
        self.survives_cut = survives_cut


# What the tree does with them. A node without bookmarks has no dict of them.


def put(bookmark: Bookmark, node: Node) -> None:
    """Add a bookmark, which is in no node, to ``node``."""
    if node.bookmarks is None:
        node.bookmarks = {}
    node.bookmarks[bookmark] = None
    bookmark.node = node


def take(bookmark: Bookmark) -> None:
    """Take a bookmark out of the node that it is in."""
    node = bookmark.node
    assert node is not None and node.bookmarks is not None
    del node.bookmarks[bookmark]
    if not node.bookmarks:
        node.bookmarks = None
    bookmark.node = None


def hand_over(node: Node, heir: Node) -> None:
    """All bookmarks of ``node`` move to ``heir``, which holds the same tokens."""
    for bookmark in list(node.bookmarks or ()):
        take(bookmark)
        put(bookmark, heir)


def share(lower: Node, upper: Node) -> None:
    """``upper`` was split from ``lower``: it gets the bookmarks that end in it."""
    for bookmark in list(lower.bookmarks or ()):
        if bookmark.num_tokens <= upper.end:
            take(bookmark)
            put(bookmark, upper)


def cut(node: Node, rest: Node) -> None:
    """What follows ``rest``, which is above ``node`` or what is left of it, leaves the tree."""
    for bookmark in list(node.bookmarks or ()):
        if bookmark.num_tokens > rest.end:
            take(bookmark)
            if bookmark.survives_cut and rest.parent is not None:
                bookmark.num_tokens = rest.end
                put(bookmark, rest)
