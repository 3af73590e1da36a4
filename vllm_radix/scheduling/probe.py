# SPDX-License-Identifier: Apache-2.0
"""What is cached of a waiting request, asked of the tree or of vLLM's own KV cache manager."""

from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import BlockHashWithGroupId, make_block_hash_with_group_id
from vllm.v1.request import Request

from vllm_radix.cache.manager import RadixKVCacheManager
from vllm_radix.tree import Match, Node


class EncoderCacheProbe:
    """Asks vLLM's encoder cache manager, which may belong to any class.

    Args:
        manager: returns it.
    """

    def __init__(self, manager: Callable[[], Any]) -> None:
        self._manager = manager

    def identifiers(self) -> Collection[str]:
        """Of the items whose encoder outputs are cached."""
        # Of vLLM's own managers, the one for encoder-decoder models keeps no outputs.
        cached: Collection[str] = getattr(self._manager(), "cached", ())
        return cached


class TreeProbe:
    """Asks the radix tree, which remembers what it found. O(1) if nothing changed there."""

    def __init__(self, manager: RadixKVCacheManager) -> None:
        self.find = manager.probe
        self.lacking = manager.next_token
        self.num_reused = manager.num_reused
        self._block_size = manager.block_size

    def cohort(self, match: Match) -> tuple[Node, int]:
        """The highest node whose end is less than a block before the match's.

        Two prompts of any kind have a first word in common now and then. O(nodes in a block).
        """
        node, num_tokens = match.node, match.num_tokens
        least = num_tokens - self._block_size
        while node.parent is not None and node.start > least:
            node, num_tokens = node.parent, node.start
        return node, num_tokens

    @staticmethod
    def state(node: Node) -> tuple[int, int, int]:
        """What the node counts, and where it ends."""
        return node.version, node.growth, node.end

    @staticmethod
    def changed(node: Node, before: tuple[int, int, int], lacking: Iterable[Any]) -> list[Hashable]:
        """All if tokens left the node, otherwise those that lacked what may follow its old end."""
        version, _, old_end = before
        if node.version != version:
            return list(lacking)
        end, children = node.end, node.children
        return [
            lacks
            for lacks in lacking
            if lacks is not None
            and lacks[0] >= old_end
            and (lacks[0] < end or lacks[1] in children)
        ]


@dataclass(frozen=True, slots=True)
class HashedPrefix:
    """A cached prefix. Those that end in the same block are of one branch."""

    num_tokens: int
    node: int
    """Id of the last block; -1 if there is none."""


class BlockHashProbe:
    """Finds cached prefixes by vLLM's block hashes, in the first KV cache group alone.

    With several groups a hit may turn out shorter, and it is taken for granted that what precedes
    a cached block is cached. So this serves for the order of requests and for nothing else. Looks
    up again only where the last answer ended: O(1) if nothing changed.
    """

    def __init__(self, manager: KVCacheManager, hash_block_size: int) -> None:
        self._pool = manager.block_pool
        self._block_size = hash_block_size
        self._num_blocks: dict[str, int] = {}

    def find(self, request: Request) -> HashedPrefix | None:
        """The longest prefix of which every block is cached, at most all but the last token."""
        hashes = request.block_hashes
        num_hashes = self._num_hashes(request)
        at = min(self._num_blocks.get(request.request_id, 0), num_hashes)
        if at and self._cached(hashes[at - 1]) is None:
            at = 0
        while at < num_hashes and self._cached(hashes[at]) is not None:
            at += 1
        self._num_blocks[request.request_id] = at
        last = self._cached(hashes[at - 1]) if at else None
        return HashedPrefix(at * self._block_size, -1 if last is None else last)

    @staticmethod
    def num_reused(prefix: HashedPrefix) -> int:
        """All: these are whole blocks."""
        return prefix.num_tokens

    @staticmethod
    def cohort(prefix: HashedPrefix) -> tuple[int, int]:
        """What was found: these are whole blocks."""
        return prefix.node, prefix.num_tokens

    def state(self, node: int) -> tuple[object, object]:
        """The hash of the block; and never twice the same, as it has any number of successors."""
        return self._hash_of(node), object()

    def changed(
        self, node: int, before: tuple[object, object], lacking: Iterable[Hashable]
    ) -> list[Hashable]:
        """All if the block holds something else, otherwise those whose next block is cached."""
        if self._hash_of(node) != before[0]:
            return list(lacking)
        find = self._pool.cached_block_hash_to_block.get_one_block
        return [lacks for lacks in lacking if lacks is not None and find(lacks) is not None]  # type: ignore[arg-type]

    def lacking(self, request: Request, prefix: HashedPrefix) -> BlockHashWithGroupId | None:
        """The hash of the block after the prefix; None if the last token is in it."""
        at = prefix.num_tokens // self._block_size
        if at >= self._num_hashes(request):
            return None
        return make_block_hash_with_group_id(request.block_hashes[at], 0)

    def forget(self, request: Request) -> None:
        """The request does not wait any more."""
        self._num_blocks.pop(request.request_id, None)

    def _hash_of(self, node: int) -> object:
        return self._pool.blocks[node].block_hash if node >= 0 else None

    def _num_hashes(self, request: Request) -> int:
        return min(len(request.block_hashes), (request.num_tokens - 1) // self._block_size)

    def _cached(self, block_hash: object) -> int | None:
        blocks = self._pool.get_cached_block(block_hash, [0])  # type: ignore[arg-type]
        return blocks[0].block_id if blocks else None
