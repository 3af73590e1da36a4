# SPDX-License-Identifier: Apache-2.0
"""The tree alone: eviction from a large one, and a match along a deep path."""

from dataclasses import dataclass

import numpy as np

from benchmarks.micro.contenders import BLOCK_SIZE, VOCABULARY_SIZE
from benchmarks.micro.figures import Figure, at_most_seconds
from benchmarks.micro.timing import interleaved, timed
from vllm_radix.tree import Key, Namespace, RadixTree
from vllm_radix.tree.key import TOKEN_BYTES

_EDGE_TOKENS = 64
_EDGE_BLOCKS = _EDGE_TOKENS // BLOCK_SIZE


@dataclass(frozen=True)
class Bush:
    """A tree of three levels below the root; each edge is 64 tokens, or 4 blocks.

    Attributes:
        name: of the contender, of which there is one.
    """

    tree: RadixTree
    _prompts: list[bytes]
    name: str = "tree"

    @classmethod
    def grow(cls, a: int, b: int, c: int) -> "Bush":
        """Serve the prompts of all leaves of a tree.

        Args:
            a, b, c: children of the root, of each of those, and of each of those again.
        """
        num_nodes = a * (1 + b * (1 + c))
        num_blocks = num_nodes * _EDGE_BLOCKS
        bush = cls(RadixTree(BLOCK_SIZE, num_blocks), _prompts_of_leaves(a, b, c))
        bush.use(list(range(num_blocks)))
        assert sum(1 for _ in bush.tree) == num_nodes + 1, "the root, and one for each edge"
        return bush

    def use(self, free: list[int], *, only_missing: bool = False) -> None:
        """Serve all prompts, or only those that are not cached; put those in ``free`` blocks."""
        for data in self._prompts:
            key = Key(Namespace(), data)
            if not (only_missing and self.tree.match(key).num_tokens == len(key)):
                _serve(self.tree, key, free)


def _prompts_of_leaves(a: int, b: int, c: int) -> list[bytes]:
    rng = np.random.default_rng(1)
    edges = rng.integers(0, VOCABULARY_SIZE, (a * (1 + b * (1 + c)), _EDGE_TOKENS), np.int32)
    # Siblings part at their first token.
    edges[:, 0] = np.arange(len(edges))
    packed = iter([edge.tobytes() for edge in edges])
    prompts = []
    for _ in range(a):
        top = next(packed)
        for _ in range(b):
            middle = top + next(packed)
            prompts += [middle + next(packed) for _ in range(c)]
    return prompts


def _serve(tree: RadixTree, key: Key, free: list[int]) -> None:
    """What a request does to the tree in its life."""
    match = tree.match(key)
    num_matched = match.num_tokens // BLOCK_SIZE
    if num_matched:
        handle = tree.acquire(match, num_matched)
    else:
        handle = tree.enter(key.namespace)
    num_missing = len(key) // BLOCK_SIZE - num_matched
    if num_missing:
        blocks = [free.pop() for _ in range(num_missing)]
        data = key.data[num_matched * BLOCK_SIZE * TOKEN_BYTES :]
        handle = tree.extend(handle, data, blocks).node
    tree.release(handle)


def evict_little(rounds: int) -> Figure:
    """Evict 64 tokens, again and again, from a tree of 90,000 nodes."""
    bush = Bush.grow(100, 29, 30)

    def evict(bush: Bush, _: int) -> dict[str, float]:
        seconds, freed = timed(lambda: bush.tree.evict(_EDGE_BLOCKS))
        assert len(freed) == _EDGE_BLOCKS
        return {"evict": seconds}

    seconds = interleaved([bush], rounds, evict)["evict"][bush.name]
    return Figure("evict 64 tokens of 90,000 nodes", seconds, target=at_most_seconds(50e-6))


def evict_much(rounds: int) -> list[Figure]:
    """Evict a tenth of a tree of 100,000 nodes, which grows back in between.

    Again after every prompt was used once more: their old places in the order of eviction have
    to be cleared away then.
    """
    bush = Bush.grow(100, 27, 36)
    num_blocks = bush.tree.num_cached_blocks // 10

    def evict(bush: Bush, _: int) -> dict[str, float]:
        as_it_is, freed = timed(lambda: bush.tree.evict(num_blocks))
        assert len(freed) == num_blocks
        bush.use(freed)
        used, freed = timed(lambda: bush.tree.evict(num_blocks))
        assert len(freed) == num_blocks
        bush.use(freed, only_missing=True)
        return {"as it is": as_it_is, "used": used}

    medians = interleaved([bush], rounds, evict)
    name = "evict 10 % of 100,000 nodes"
    return [
        Figure(name, medians["as it is"][bush.name], target=at_most_seconds(120e-3)),
        Figure(f"{name}, all used again", medians["used"][bush.name]),
    ]


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
    _serve(tree, Key(Namespace(), tokens.tobytes()), free)
    for end in range(num_tokens // num_nodes, num_tokens, num_tokens // num_nodes):
        branch = rng.integers(0, VOCABULARY_SIZE, BLOCK_SIZE, np.int32)
        branch[0] = tokens[end] ^ 1
        _serve(tree, Key(Namespace(), tokens[:end].tobytes() + branch.tobytes()), free)

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
