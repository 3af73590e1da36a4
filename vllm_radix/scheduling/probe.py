# SPDX-License-Identifier: Apache-2.0
"""What is cached of a waiting request, asked of the tree or of vLLM's own KV cache manager."""

from dataclasses import dataclass
from typing import Any

from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.request import Request

from vllm_radix.cache.manager import RadixKVCacheManager
from vllm_radix.tree import Node


class EncoderProbe:
    """Asks vLLM's encoder cache, which may belong to any class."""

    def __init__(self, encoder_cache_manager: Any) -> None:
        # Of vLLM's own managers, the one for encoder-decoder models keeps no outputs.
        self._outputs = getattr(encoder_cache_manager, "cached", {})

    def num_to_encode(self, request: Request, num_cached_tokens: int) -> int:
        """How many items lie beyond the cached prefix and have no output in the encoder cache."""
        return sum(
            feature.identifier not in self._outputs
            for feature in request.mm_features
            if feature.mm_position.offset + feature.mm_position.length > num_cached_tokens
        )


class TreeProbe:
    """Asks the radix tree, which remembers what it found. O(1) if nothing changed there."""

    def __init__(self, manager: RadixKVCacheManager) -> None:
        self.find = manager.probe

    @staticmethod
    def state(node: Node) -> tuple[int, int]:
        """What the node counts."""
        return node.version, node.growth


@dataclass(frozen=True, slots=True)
class HashedPrefix:
    """A cached prefix. Those that end in the same block are of one branch."""

    num_tokens: int
    node: int
    """Id of the last block; -1 if there is none."""


class BlockHashProbe:
    """Finds cached prefixes by vLLM's block hashes, in the first KV cache group alone.

    With several groups a hit may turn out shorter, so this serves for the order of requests and
    for nothing else. Looks up again only where the last answer ended: O(1) if nothing changed.
    """

    def __init__(self, manager: KVCacheManager, hash_block_size: int) -> None:
        self._pool = manager.block_pool
        self._block_size = hash_block_size
        self._num_blocks: dict[str, int] = {}

    def find(self, request: Request) -> HashedPrefix | None:
        """The longest prefix of which every block is cached, at most all but the last token."""
        hashes = request.block_hashes[: (request.num_tokens - 1) // self._block_size]
        at = min(self._num_blocks.get(request.request_id, 0), len(hashes))
        if at and self._cached(hashes[at - 1]) is None:
            at = 0
        while at < len(hashes) and self._cached(hashes[at]) is not None:
            at += 1
        self._num_blocks[request.request_id] = at
        last = self._cached(hashes[at - 1]) if at else None
        return HashedPrefix(at * self._block_size, -1 if last is None else last)

    def state(self, node: int) -> object:
        """Never twice the same: whether a block's successors are cached depends on the request."""
        return object()

    def forget(self, request: Request) -> None:
        """The request does not wait any more."""
        self._num_blocks.pop(request.request_id, None)

    def _cached(self, block_hash: object) -> int | None:
        blocks = self._pool.get_cached_block(block_hash, [0])  # type: ignore[arg-type]
        return blocks[0].block_id if blocks else None
