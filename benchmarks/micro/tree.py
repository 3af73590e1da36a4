# SPDX-License-Identifier: Apache-2.0
"""The tree alone: eviction from a large one, and a match along a deep path."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.micro.contenders import BLOCK_SIZE, VOCABULARY_SIZE
from benchmarks.micro.figures import Figure, at_most_seconds
from benchmarks.micro.timing import interleaved, timed
from vllm_radix.tree import Key, Namespace, RadixTree

_EDGE_TOKENS = 64
_EDGE_BLOCKS = _EDGE_TOKENS // BLOCK_SIZE


@dataclass(frozen=True)
class Forest:
    """A tree of three levels below the root; each edge is 64 tokens, or 4 blocks.

    Attributes:
        name: of the contender, of which there is one.
        fan_out: children of the root, of those, and of those again.
    """

    fan_out: tuple[int, int, int]
    tree: RadixTree
    name: str = "tree"

    @classmethod
    def grow(cls, *fan_out: int) -> "Forest":
        """Make the tree by caching the prompts of all its leaves."""
        a, b, c = fan_out
        num_blocks = a * (1 + b * (1 + c)) * _EDGE_BLOCKS
        forest = cls((a, b, c), RadixTree(BLOCK_SIZE, num_blocks))
        forest.fill(list(range(num_blocks)))
        assert forest.tree.num_cached_blocks == num_blocks
        return forest

    def fill(self, free: list[int]) -> None:
        """Cache all prompts as far as they are not, in blocks from ``free``."""
        for data in self._prompts():
            _cache(self.tree, data, free)

    def _prompts(self) -> Iterator[bytes]:
        a, b, c = self.fan_out
        rng = np.random.default_rng(1)
        edges = rng.integers(0, VOCABULARY_SIZE, (a * (1 + b * (1 + c)), _EDGE_TOKENS), np.int32)
        # Siblings part at their first token.
        edges[:, 0] = np.arange(len(edges))
        packed = iter([edge.tobytes() for edge in edges])
        for _ in range(a):
            top = next(packed)
            for _ in range(b):
                middle = top + next(packed)
                for _ in range(c):
                    yield middle + next(packed)


def _cache(tree: RadixTree, data: bytes, free: list[int]) -> None:
    """What a request does to the tree in its life."""
    match = tree.match(Key(Namespace(), data))
    num_matched = match.num_tokens // BLOCK_SIZE
    if num_matched:
        handle = tree.acquire(match, num_matched)
    else:
        handle = tree.enter(Namespace())
    num_missing = len(data) // 4 // BLOCK_SIZE - num_matched
    if num_missing:
        blocks = [free.pop() for _ in range(num_missing)]
        handle = tree.extend(handle, data[num_matched * BLOCK_SIZE * 4 :], blocks).node
    tree.release(handle)


def evict_little(rounds: int) -> Figure:
    """Evict 64 tokens, again and again, from a tree of 90,000 nodes."""
    forest = Forest.grow(100, 29, 30)

    def evict(forest: Forest, _: int) -> dict[str, float]:
        seconds, freed = timed(lambda: forest.tree.evict(_EDGE_BLOCKS))
        assert len(freed) == _EDGE_BLOCKS
        return {"evict": seconds}

    seconds = interleaved([forest], rounds, evict)["evict"][forest.name]
    return Figure("evict 64 tokens of 90,000 nodes", seconds, target=at_most_seconds(50e-6))


def evict_much(rounds: int) -> Figure:
    """Evict a tenth of a tree of 100,000 nodes, which grows back in between."""
    forest = Forest.grow(100, 27, 36)
    num_blocks = forest.tree.num_cached_blocks // 10

    def evict(forest: Forest, _: int) -> dict[str, float]:
        seconds, freed = timed(lambda: forest.tree.evict(num_blocks))
        assert len(freed) == num_blocks
        forest.fill(freed)
        return {"evict": seconds}

    seconds = interleaved([forest], rounds, evict)["evict"][forest.name]
    return Figure("evict 10 % of 100,000 nodes", seconds, target=at_most_seconds(120e-3))


@dataclass(frozen=True)
class _Path:
    tree: RadixTree
    key: Key
    name: str = "path"


def match_deep(num_nodes: int, num_tokens: int, rounds: int) -> Figure:
    """Match a prompt that lies along a path of many nodes."""
    rng = np.random.default_rng(2)
    tokens = rng.integers(0, VOCABULARY_SIZE, num_tokens, np.int32)
    free = list(range(2 * num_tokens // BLOCK_SIZE))
    tree = RadixTree(BLOCK_SIZE, len(free))
    _cache(tree, tokens.tobytes(), free)
    for end in range(num_tokens // num_nodes, num_tokens, num_tokens // num_nodes):
        branch = rng.integers(0, VOCABULARY_SIZE, BLOCK_SIZE, np.int32)
        branch[0] = tokens[end] ^ 1
        _cache(tree, tokens[:end].tobytes() + branch.tobytes(), free)

    def match(path: _Path, _: int) -> dict[str, float]:
        seconds, found = timed(lambda: path.tree.match(path.key))
        assert found.num_tokens == num_tokens
        return {"match": seconds}

    path = _Path(tree, Key(Namespace(), tokens.tobytes()))
    node, depth = tree.match(path.key).node, 0
    while node.parent is not None:
        node, depth = node.parent, depth + 1
    assert depth == num_nodes
    seconds = interleaved([path], rounds, match)["match"][path.name]
    return Figure(
        f"match {num_tokens:,} tokens in a path of {num_nodes} nodes",
        seconds,
        target=at_most_seconds(1e-3),
    )
