# SPDX-License-Identifier: Apache-2.0
"""Blocks are free, private or cached, and whoever holds one keeps it."""

from collections.abc import Iterator

import pytest
from vllm.distributed.kv_events import AllBlocksCleared
from vllm.v1.core.kv_cache_metrics import KVCacheMetricsCollector

from vllm_radix.cache.block_pool import BlockList, PoppedTable, RadixBlockPool
from vllm_radix.tree import Key, Namespace, Node, RadixTree, pack_tokens

BLOCK_SIZE = 4
NUM_BLOCKS = 10
"""Those that can be had; the null block comes on top."""


@pytest.fixture
def pool() -> Iterator[RadixBlockPool]:
    pool = RadixBlockPool(
        NUM_BLOCKS + 1, True, BLOCK_SIZE, enable_kv_cache_events=True, make_tree=RadixTree
    )
    yield pool
    pool.check()


def cache(pool: RadixBlockPool, tokens: list[int]) -> tuple[Node, list[int]]:
    """Cache the KV of ``tokens`` in new blocks; returns the handle and the blocks."""
    blocks = pool.allocate(len(tokens) // BLOCK_SIZE)
    handle = pool.tree.enter(Namespace())
    extension = pool.tree.extend(handle, pack_tokens(tokens), blocks[:])
    assert extension.num_duplicates == 0
    pool.give_to_tree(blocks)
    return extension.node, blocks


def release(pool: RadixBlockPool, handle: Node) -> None:
    pool.reclaim(pool.tree.release(handle))


def num_found(pool: RadixBlockPool, tokens: list[int]) -> int:
    return pool.tree.match(Key.of(tokens)).num_tokens


TWELVE = list(range(12))


def test_a_fresh_pool_gives_every_block_but_the_null_block(pool: RadixBlockPool) -> None:
    assert pool.get_num_free_blocks() == NUM_BLOCKS
    assert pool.get_usage() == 0.0
    assert pool.allocate(3) == [1, 2, 3]
    assert [block.block_id for block in pool.get_new_blocks(7)] == [4, 5, 6, 7, 8, 9, 10]
    assert pool.get_num_free_blocks() == 0
    assert pool.get_usage() == 1.0


def test_more_than_there_is_cannot_be_had_and_changes_nothing(pool: RadixBlockPool) -> None:
    pool.allocate(8)
    with pytest.raises(ValueError, match="Cannot get 3 free blocks"):
        pool.get_new_blocks(3)
    assert pool.allocate(0) == []
    assert pool.get_num_free_blocks() == 2


def test_a_private_block_is_free_again_when_its_last_holder_frees_it(
    pool: RadixBlockPool,
) -> None:
    (block,) = pool.get_new_blocks(1)
    pool.touch([block])
    assert block.ref_cnt == 2
    pool.free_blocks([block])
    assert block.ref_cnt == 1
    assert pool.get_num_free_blocks() == NUM_BLOCKS - 1
    pool.free_blocks([block])
    assert block.ref_cnt == 0
    assert pool.get_num_free_blocks() == NUM_BLOCKS


def test_a_touched_free_block_is_not_handed_out(pool: RadixBlockPool) -> None:
    block = pool.blocks[5]
    pool.touch([block])
    assert block.ref_cnt == 1
    assert 5 not in pool.allocate(NUM_BLOCKS - 1)
    pool.free_blocks([block])
    assert pool.allocate(1) == [5]


def test_a_touched_cached_block_keeps_its_prefix_and_nothing_after_it(
    pool: RadixBlockPool,
) -> None:
    handle, blocks = cache(pool, TWELVE)
    release(pool, handle)
    middle = pool.blocks[blocks[1]]
    pool.touch([middle])
    pool.touch([middle])
    assert [pool.blocks[block].ref_cnt for block in blocks] == [2, 2, 0]
    assert pool.get_num_free_blocks() == NUM_BLOCKS - 2
    assert not {blocks[0], blocks[1]} & set(pool.allocate(NUM_BLOCKS - 2))
    pool.free_blocks([middle])
    assert pool.get_num_free_blocks() == 0
    pool.free_blocks([middle])
    assert pool.get_num_free_blocks() == 2
    assert num_found(pool, TWELVE) == 8


def test_a_hold_on_a_private_block_outlives_its_way_into_the_cache(pool: RadixBlockPool) -> None:
    (block,) = pool.get_new_blocks(1)
    pool.touch([block])
    extension = pool.tree.extend(
        pool.tree.enter(Namespace()), pack_tokens(TWELVE[:4]), [block.block_id]
    )
    pool.give_to_tree([block.block_id])
    assert block.ref_cnt == 2
    release(pool, extension.node)
    assert block.ref_cnt == 1
    assert block.block_id not in pool.allocate(NUM_BLOCKS - 1)
    pool.free_blocks([block])
    assert pool.get_num_free_blocks() == 1
    assert num_found(pool, TWELVE) == 4


def test_the_null_block_cannot_be_touched_or_freed(pool: RadixBlockPool) -> None:
    assert pool.null_block.is_null
    assert pool.null_block is pool.blocks[0]
    pool.touch([pool.null_block])
    pool.free_blocks([pool.null_block])
    assert pool.get_num_free_blocks() == NUM_BLOCKS


def test_allocation_evicts_as_much_as_is_missing(pool: RadixBlockPool) -> None:
    handle, blocks = cache(pool, TWELVE)
    release(pool, handle)
    pool.allocate(NUM_BLOCKS - 3)
    assert num_found(pool, TWELVE) == 12
    assert pool.allocate(1) == [blocks[2]]
    assert num_found(pool, TWELVE) == 8


def test_an_evicted_block_is_not_found_and_is_free(pool: RadixBlockPool) -> None:
    handle, blocks = cache(pool, TWELVE)
    release(pool, handle)
    pool.evict_blocks({blocks[1]})
    assert num_found(pool, TWELVE) == 4
    assert pool.get_num_free_blocks() == NUM_BLOCKS
    assert pool.blocks[blocks[2]].ref_cnt == 0


def test_an_evicted_block_stays_with_whoever_uses_it(pool: RadixBlockPool) -> None:
    handle, blocks = cache(pool, TWELVE)
    pool.evict_blocks({blocks[1], blocks[2]})
    assert num_found(pool, TWELVE) == 4
    assert [pool.blocks[block].ref_cnt for block in blocks] == [1, 1, 1]
    assert not set(blocks) & set(pool.allocate(NUM_BLOCKS - 3))
    release(pool, handle)
    assert pool.get_num_free_blocks() == 3
    # Only the first is cached still.
    assert sorted(pool.allocate(2)) == sorted(blocks[1:])
    assert num_found(pool, TWELVE) == 4


def test_a_block_can_be_evicted_after_the_one_before_it(pool: RadixBlockPool) -> None:
    handle, blocks = cache(pool, TWELVE)
    pool.evict_blocks({blocks[0]})
    pool.evict_blocks({blocks[1]})
    pool.check()
    release(pool, handle)
    assert num_found(pool, TWELVE) == 0
    assert pool.get_num_free_blocks() == NUM_BLOCKS


def test_holding_a_part_of_what_is_held_changes_nothing_else(pool: RadixBlockPool) -> None:
    handle, blocks = cache(pool, TWELVE)
    release(pool, handle)
    used = pool.tree.acquire(pool.tree.match(Key.of(TWELVE[:4])), 1)
    release(pool, used)
    pool.touch([pool.blocks[blocks[2]]])
    pool.check()
    pool.free_blocks([pool.blocks[blocks[2]]])
    pool.check()
    # The first block is the one that was used last.
    pool.allocate(NUM_BLOCKS - 1)
    assert num_found(pool, TWELVE) == 4


def test_evicting_what_is_not_cached_does_nothing(pool: RadixBlockPool) -> None:
    (private,) = pool.allocate(1)
    pool.evict_blocks({private, 7})
    assert pool.get_num_free_blocks() == NUM_BLOCKS - 1


def test_evicting_a_block_that_does_not_exist_is_an_error(pool: RadixBlockPool) -> None:
    with pytest.raises(AssertionError, match="Invalid block_id 11 >= 11"):
        pool.evict_blocks({11})


def test_reset_forgets_everything(pool: RadixBlockPool) -> None:
    handle, _ = cache(pool, TWELVE)
    release(pool, handle)
    assert pool.reset_prefix_cache()
    assert num_found(pool, TWELVE) == 0
    assert pool.get_num_free_blocks() == NUM_BLOCKS
    assert [type(event) for event in pool.take_events()] == [AllBlocksCleared]
    assert sorted(pool.allocate(NUM_BLOCKS)) == list(range(1, NUM_BLOCKS + 1))


@pytest.mark.parametrize("kind", ["private", "locked", "touched"])
def test_reset_does_nothing_while_a_block_is_in_use(pool: RadixBlockPool, kind: str) -> None:
    handle, blocks = cache(pool, TWELVE)
    if kind != "locked":
        release(pool, handle)
    if kind == "private":
        pool.allocate(1)
    if kind == "touched":
        pool.touch([pool.blocks[blocks[0]]])
    num_free = pool.get_num_free_blocks()
    assert not pool.reset_prefix_cache()
    assert num_found(pool, TWELVE) == 12
    assert pool.get_num_free_blocks() == num_free
    assert pool.take_events() == []


def test_usage_counts_neither_the_null_block_nor_what_can_be_evicted(pool: RadixBlockPool) -> None:
    handle, _ = cache(pool, TWELVE)
    assert pool.get_usage() == pytest.approx(3 / NUM_BLOCKS)
    release(pool, handle)
    assert pool.get_usage() == pytest.approx(0.0)


def test_a_block_list_reads_as_a_sequence_of_blocks(pool: RadixBlockPool) -> None:
    ids = pool.allocate(3)
    blocks = BlockList(pool, ids)
    assert len(blocks) == 3
    assert blocks[0] is pool.blocks[ids[0]]
    assert blocks[-1].block_id == ids[-1]
    assert [block.block_id for block in blocks[1:]] == ids[1:]
    assert [block.block_id for block in blocks] == ids
    assert blocks == list(blocks)
    assert blocks != list(blocks)[1:]
    assert blocks[0] in blocks


def test_a_popped_table_is_freed_as_a_whole_in_either_order(pool: RadixBlockPool) -> None:
    freed: list[str] = []
    ids = pool.allocate(3)
    table = PoppedTable(pool, ids, lambda: freed.append("all"))
    assert [block.block_id for block in table] == ids
    pool.free_blocks(reversed(table))
    pool.free_blocks(table)
    assert freed == ["all", "all"]
    pool.free_blocks([pool.blocks[block] for block in ids])


def test_a_residency_ends_when_the_block_is_handed_out_again(pool: RadixBlockPool) -> None:
    """What vLLM's metrics of KV residency count, whether the block was cached or not."""
    metrics = pool.metrics_collector = KVCacheMetricsCollector(sample_rate=1.0)
    handle, _ = cache(pool, TWELVE)
    private = pool.get_new_blocks(NUM_BLOCKS - 3)
    assert metrics.drain_events() == []
    pool.free_blocks(private)
    again = pool.get_new_blocks(2)
    assert len(metrics.drain_events()) == 2
    pool.free_blocks(again)
    release(pool, handle)
    pool.get_new_blocks(NUM_BLOCKS)
    assert len(metrics.drain_events()) == NUM_BLOCKS
    assert len(metrics.block_metrics) == NUM_BLOCKS
