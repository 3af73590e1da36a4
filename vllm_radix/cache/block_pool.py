# SPDX-License-Identifier: Apache-2.0
"""Blocks: free, private to whoever allocated them, or owned by a node of the tree."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, overload

from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved
from vllm.v1.core.block_pool import BlockHashToBlockMap, BlockPool
from vllm.v1.core.kv_cache_utils import (
    BlockHashWithGroupId,
    KVCacheBlock,
    get_block_hash,
    get_group_id,
    maybe_convert_block_hash,
)

from vllm_radix.compat import get_logger
from vllm_radix.tree import Node, RadixTree

logger = get_logger(__name__)


class BlockView(KVCacheBlock):
    """A ``KVCacheBlock`` whose state is the pool's: it stores only which block it is."""

    # vLLM's class is a slotted dataclass with a field for each of the properties below.
    __slots__ = ()
    pool: "RadixBlockPool"

    def __init__(self, block_id: int, pool: "RadixBlockPool") -> None:
        self.block_id = block_id
        self.pool = pool
        self.prev_free_block = None
        self.next_free_block = None
        self.is_null = block_id == 0

    @property
    def ref_cnt(self) -> int:  # type: ignore[override]
        """Handles on a cached block's path, or holders of a private block."""
        return self.pool.ref_count(self.block_id)

    @property
    def block_hash(self) -> BlockHashWithGroupId | None:
        return self.pool.block_hashes.get(self.block_id)

    @property
    def block_hash_num_tokens(self) -> int | None:
        if self.block_hash is None:
            return None
        return self.pool.tree.match_of_block(self.block_id).num_tokens

    def set_block_hash(
        self, block_hash: BlockHashWithGroupId, num_tokens: int | None = None
    ) -> None:
        self.pool.block_hashes[self.block_id] = block_hash

    def reset_hash(self) -> None:
        self.pool.block_hashes.pop(self.block_id, None)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, BlockView):
            return self.block_id == other.block_id and self.pool is other.pool
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self.block_id)

    def __repr__(self) -> str:
        return f"BlockView({self.block_id}, ref_cnt={self.ref_cnt})"


class BlockList(Sequence[KVCacheBlock]):
    """Block ids that read as a sequence of ``KVCacheBlock``.

    Attributes:
        ids: the block ids, shape ``[num_blocks]``.
    """

    __slots__ = ("_pool", "ids")

    def __init__(self, pool: "RadixBlockPool", ids: list[int]) -> None:
        self._pool = pool
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, index: int) -> KVCacheBlock: ...
    @overload
    def __getitem__(self, index: slice) -> list[KVCacheBlock]: ...
    def __getitem__(self, index: int | slice) -> KVCacheBlock | list[KVCacheBlock]:
        if isinstance(index, slice):
            return [self._pool.view(block) for block in self.ids[index]]
        return self._pool.view(self.ids[index])

    def __iter__(self) -> Iterator[KVCacheBlock]:
        return map(self._pool.view, self.ids)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, BlockList):
            return self.ids == other.ids
        if isinstance(other, Sequence):
            return list(self) == list(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.ids})"


class FreeBlocks:
    """What vLLM's ``FreeKVCacheBlockQueue`` shows: the blocks in the order of their reuse.

    For connectors that save blocks before they go. Each walk is made anew.
    """

    def __init__(self, pool: "RadixBlockPool") -> None:
        self._pool = pool

    @property
    def num_free_blocks(self) -> int:
        return self._pool.get_num_free_blocks()

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        return list(self.iter_blocks_after(None))

    def iter_blocks_after(self, cursor: KVCacheBlock | None) -> Iterator[KVCacheBlock]:
        """The blocks after ``cursor``, or all of them if it is None or not free any more."""
        order = list(self._pool.reuse_order())
        if cursor is not None and cursor.block_id in order:
            order = order[order.index(cursor.block_id) + 1 :]
        return map(self._pool.view, order)


class RadixBlockPool(BlockPool):
    """vLLM's ``BlockPool`` with a radix tree in the place of the hash map and the free queue.

    What stays vLLM's: block 0 is the null block, the shape and order of KV cache events, usage,
    and the maps from block hashes for connectors that look up by hash, which are kept only for
    requests that come with hashes.
    """

    def __init__(
        self,
        num_gpu_blocks: int,
        enable_caching: bool,
        hash_block_size: int,
        *args: Any,
        make_tree: Callable[[int, int], RadixTree],
        free_watermark: float = 0.0,
        **kwargs: Any,
    ) -> None:
        # vLLM's pool builds one object per block and links them; ours has use for neither. Its
        # constructor runs on a pool of one block, so that its other attributes are there.
        super().__init__(1, enable_caching, hash_block_size, *args, **kwargs)
        self.num_gpu_blocks = num_gpu_blocks
        self.tree = make_tree(hash_block_size, num_gpu_blocks)
        self.block_hashes: dict[int, BlockHashWithGroupId] = {}
        self._views: dict[int, BlockView] = {}
        self.blocks = BlockList(self, list(range(num_gpu_blocks)))  # type: ignore[assignment]
        self.free_block_queue = FreeBlocks(self)  # type: ignore[assignment]
        self.null_block = self.view(0)
        # Popped from the end, so that a fresh pool hands out ascending ids.
        self._free: list[int] = list(range(num_gpu_blocks - 1, 0, -1))
        # Number of holders of each private block.
        self._private: dict[int, int] = {}
        # Handles that keep touched blocks of the tree, by block.
        self._holds: dict[int, list[Node]] = {}
        self.fresh: set[int] = set()
        """Blocks cached in this step, which has not run yet: they are computed after its copies."""
        self._min_free = int(free_watermark * num_gpu_blocks)

    def view(self, block: int) -> BlockView:
        """The one ``KVCacheBlock`` of a block id."""
        view = self._views.get(block)
        if view is None:
            view = self._views[block] = BlockView(block, self)
        return view

    def ref_count(self, block: int) -> int:
        """How many hold ``block``; 0 if it is free or evictable. O(1)."""
        node = self.tree.owner(block)
        return node.lock_count if node is not None else self._private.get(block, 0)

    def reuse_order(self) -> Iterator[int]:
        """Free blocks, then evictable ones, in the order in which they are handed out."""
        yield from reversed(self._free)
        yield from self.tree.eviction_order()

    # ------------------------------------------------------------------ by id, for our manager

    def allocate(self, num_blocks: int) -> list[int]:
        """Take ``num_blocks`` private blocks, evicting as many as are not free.

        Raises:
            ValueError: if there are fewer than that free and evictable.
        """
        if num_blocks <= 0:
            return []
        free = self._free
        if num_blocks > len(free):
            if num_blocks > self.get_num_free_blocks():
                raise ValueError(f"Cannot get {num_blocks} free blocks from the pool")
            self._evict(num_blocks - len(free))
        blocks = free[-num_blocks:]
        del free[-num_blocks:]
        blocks.reverse()
        self._private.update(dict.fromkeys(blocks, 1))
        if self.metrics_collector:
            for block in blocks:
                # A block's residency ends when it is handed out again, cached or not.
                self.metrics_collector.on_block_evicted(self.view(block))
                self.metrics_collector.on_block_allocated(self.view(block))
        return blocks

    def give_to_tree(self, blocks: Sequence[int]) -> None:
        """The tree took these private blocks; whoever else holds one now holds its prefix."""
        private = self._private
        self.fresh.update(blocks)
        for block in blocks:
            for _ in range(private.pop(block) - 1):
                self._holds.setdefault(block, []).append(self.tree.hold(block))

    def replace(self, blocks: list[int], copies: list[int]) -> None:
        """The tree has ``copies`` now in the places of ``blocks``, which are free.

        Nobody who looks up or follows events sees a difference.
        """
        self.give_to_tree(copies)
        for block, copy in zip(blocks, copies, strict=True):
            block_hash = self.block_hashes.pop(block, None)
            if block_hash is not None:
                self.cached_block_hash_to_block.pop(block_hash, block)
                self.cached_block_hash_to_block.insert(block_hash, self.view(copy))
                self.block_hashes[copy] = block_hash
        self._free += reversed(blocks)

    def take_from_tree(self, blocks: Iterable[int]) -> None:
        """The tree let go of these blocks, which no match found; they are private again."""
        self._private.update(dict.fromkeys(blocks, 1))

    def free_private(self, blocks: Iterable[int]) -> None:
        """One holder less for each of these private blocks."""
        private = self._private
        for block in blocks:
            holders = private[block]
            if holders > 1:
                private[block] = holders - 1
            else:
                del private[block]
                self._free.append(block)

    def reclaim(self, blocks: list[int]) -> None:
        """The tree let go of these blocks."""
        if blocks:
            self._forget(blocks)
            self._free += reversed(blocks)

    def start_step(self) -> None:
        """What was cached before is computed; evict ahead of need, up to the watermark."""
        self.fresh.clear()
        if len(self._free) < self._min_free:
            self._evict(self._min_free - len(self._free))

    def check(self) -> None:
        """Verify that every block is free, private or cached, and the tree's own invariants.

        Raises:
            AssertionError: naming what does not hold.
        """
        self.tree.check()
        cached = {block for node in self.tree.all_nodes() for block in node.blocks}
        free = set(self._free)
        assert len(free) == len(self._free), "a block is free twice"
        assert not (free & cached) and not (free & self._private.keys())
        assert not (cached & self._private.keys())
        assert len(free) + len(cached) + len(self._private) == self.num_gpu_blocks - 1
        assert self.block_hashes.keys() <= cached
        assert self._holds.keys() <= cached

    def _evict(self, num_blocks: int) -> None:
        self.reclaim(self.tree.evict(num_blocks))

    def _forget(self, blocks: Iterable[int]) -> None:
        """Drop the hashes of blocks that no match finds any more; publish the removals."""
        if not self.block_hashes:
            return
        for block in blocks:
            block_hash = self.block_hashes.pop(block, None)
            if block_hash is None:
                continue
            self.cached_block_hash_to_block.pop(block_hash, block)
            if (
                self.enable_kv_cache_events
                and self.cached_block_hash_to_block.get_one_block(block_hash) is None
            ):
                self.kv_event_queue.append(
                    BlockRemoved(
                        block_hashes=[maybe_convert_block_hash(get_block_hash(block_hash))],
                        medium=self.medium,
                        group_idx=get_group_id(block_hash),
                    )
                )

    # ------------------------------------------------------------------ vLLM's interface

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        return [self.view(block) for block in self.allocate(num_blocks)]

    def touch(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Hold blocks against eviction and reuse. O(path) for each that is cached."""
        for block in blocks:
            block_id = block.block_id
            if block.is_null:
                continue
            if self.tree.owner(block_id) is not None:
                self._holds.setdefault(block_id, []).append(self.tree.hold(block_id))
            elif block_id in self._private:
                self._private[block_id] += 1
            else:
                self._free.remove(block_id)
                self._private[block_id] = 1
            if self.metrics_collector:
                self.metrics_collector.on_block_accessed(block)

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        if isinstance(ordered_blocks, PoppedTable):
            ordered_blocks.free()
            return
        for block in ordered_blocks:
            if block.is_null:
                continue
            holds = self._holds.get(block.block_id)
            if holds:
                self.reclaim(self.tree.release(holds.pop(), used=False))
                if not holds:
                    del self._holds[block.block_id]
            else:
                self.free_private((block.block_id,))

    def evict_blocks(self, block_ids: set[int]) -> None:
        """Make sure that no match finds these blocks, or what follows them, again."""
        for block_id in block_ids:
            assert block_id < self.num_gpu_blocks, (
                f"Invalid block_id {block_id} >= {self.num_gpu_blocks}. A KV connector must "
                "report only blocks that the scheduler allocated."
            )
            if self.tree.owner(block_id) is None:
                continue
            freed = self.tree.detach(block_id)
            node = self.tree.owner(block_id)
            if node is not None:
                self._forget([block for part in node.subtree() for block in part.blocks])
            self.reclaim(freed)

    def reset_prefix_cache(self) -> bool:
        num_used_blocks = self.num_gpu_blocks - 1 - self.get_num_free_blocks()
        if num_used_blocks:
            logger.warning(
                "Failed to reset prefix cache because some blocks (%d) are not freed yet",
                num_used_blocks,
            )
            return False
        self._free += reversed(self.tree.clear())
        self.block_hashes.clear()
        self.cached_block_hash_to_block = BlockHashToBlockMap()  # type: ignore[no-untyped-call]
        if self.metrics_collector:
            self.metrics_collector.reset()
        logger.info("Successfully reset prefix cache")
        if self.enable_kv_cache_events:
            self.kv_event_queue.append(AllBlocksCleared())
        return True

    def get_num_free_blocks(self) -> int:
        return len(self._free) + self.tree.num_evictable_blocks


class PoppedTable(BlockList):
    """A finished request's blocks, to be freed later by a call of ``BlockPool.free_blocks``.

    The scheduler reverses the list before it frees it, for the order of vLLM's free queue; here
    the order is the tree's.
    """

    __slots__ = ("free",)

    def __init__(self, pool: RadixBlockPool, ids: list[int], free: Callable[[], None]) -> None:
        super().__init__(pool, ids)
        self.free = free

    def __reversed__(self) -> Iterator[KVCacheBlock]:
        return self  # type: ignore[return-value]
