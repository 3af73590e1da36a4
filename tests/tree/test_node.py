# SPDX-License-Identifier: Apache-2.0
"""A node's place: what follows from its edge and its start."""

import pytest

from vllm_radix.tree import Node, pack_tokens


def node_at(start: int, tokens: list[int]) -> Node:
    return Node(None, start, bytearray(pack_tokens(tokens)), [])


def test_span() -> None:
    node = node_at(10, [5, 6, 7])
    assert (node.start, node.num_tokens, node.end) == (10, 3, 13)


@pytest.mark.parametrize("first", [0, 1, 2**31 - 1, -1, -(2**31)])
def test_first_token_is_signed(first: int) -> None:
    assert node_at(0, [first, 3]).first == first


def test_subtree_has_parents_before_children() -> None:
    top, left, right, leaf = (node_at(0, [i]) for i in range(4))
    top.children = {1: left, 2: right}
    left.children = {3: leaf}
    nodes = list(top.subtree())
    assert nodes[0] is top
    assert sorted(node.first for node in nodes) == [0, 1, 2, 3]
    assert nodes.index(left) < nodes.index(leaf)


def test_it_shows_where_it_is() -> None:
    assert repr(node_at(4, [1, 2])) == "Node([4, 6), 0 blocks, 0 children, lock_count=0)"
