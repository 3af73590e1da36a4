# SPDX-License-Identifier: Apache-2.0
"""Faults that prefix caches have had in the field, each with what is right instead."""

import random
from functools import partial

import pytest

from vllm_radix.tree import Namespace, Node, RadixTree, pack_tokens
from vllm_radix.tree.eviction import LRU

from .pool import Pool, count_steps

PROMPT = list(range(100, 112))


def children_are_where_they_belong(tree: RadixTree) -> bool:
    return all(
        node.children[child.first] is child and child.parent is node
        for node in tree
        for child in node.children.values()
    )


def test_the_blocks_of_a_running_request_are_not_freed_when_it_finds_itself_a_duplicate() -> None:
    """Two requests compute one prompt side by side, and the second comes too late.

    It goes on with its own blocks, which are no concern of the tree: it neither takes them nor
    frees them, and those that it has are the other request's.
    """
    pool = Pool(block_size=4)
    first, second = pool.start([]), pool.start([])
    taken = pool.tree.extend(first, pack_tokens(PROMPT), [0, 1, 2])
    late = pool.tree.extend(second, pack_tokens(PROMPT), [10, 11, 12])
    assert (taken.num_duplicates, taken.freed) == (0, [])
    assert (late.num_duplicates, late.freed) == (3, [])
    assert [pool.tree.owner(block) for block in (10, 11, 12)] == [None] * 3
    # Neither the end of the one nor that of the other frees anything that the tree did not own.
    assert pool.finish(late.node) == []
    assert pool.tree.num_evictable_blocks == 0
    assert pool.finish(taken.node) == []
    assert pool.evict(9) == [2, 1, 0]


@pytest.mark.parametrize("at", range(1, 12))
def test_after_a_split_and_an_eviction_each_child_is_found_by_its_first_token(at: int) -> None:
    """An edge is split at some token, then one side is evicted, then the other."""
    for first_to_go in (0, 1):
        pool = Pool(block_size=4)
        prompts = [PROMPT, [*PROMPT[:at], *range(12 - at)]]
        pool.serve(prompts[1 - first_to_go])
        pool.finish(pool.start(prompts[first_to_go]))
        # The first one is used again, and so outlives the second.
        pool.serve(prompts[1 - first_to_go])
        assert children_are_where_they_belong(pool.tree)
        while pool.num_cached(prompts[first_to_go]) > at:
            pool.evict(1)
            assert children_are_where_they_belong(pool.tree)
        assert pool.num_cached(prompts[1 - first_to_go]) == 12
        while pool.evict(1):
            assert children_are_where_they_belong(pool.tree)


def test_when_half_of_a_cold_edge_is_hit_the_other_half_stays_cold() -> None:
    """An old prompt of three blocks, then a newer one, then a hit of the old one's first block.

    The block that was hit is the most recent, and the rest of its edge is still the oldest.
    """
    pool = Pool(block_size=4)
    pool.serve(PROMPT)
    pool.serve([1, 2, 3, 4])
    pool.finish(pool.admit(PROMPT, num_blocks=1))
    assert pool.evict(9) == [2, 1, 3, 0]


def test_a_lookup_does_not_make_a_cold_edge_recent() -> None:
    pool = Pool(block_size=4)
    pool.serve(PROMPT)
    pool.serve([1, 2, 3, 4])
    pool.match(PROMPT)
    assert pool.evict(9) == [2, 1, 0, 3]


def test_lock_split_unlock() -> None:
    """A locked edge is split, at a block and inside one, and split again, then unlocked.

    No count goes negative, and none stays.
    """
    pool = Pool(block_size=4)
    handles = [pool.start(PROMPT)]
    handles.append(pool.start([*PROMPT[:8], 1, 2, 3, 4]))
    handles.append(pool.start([*PROMPT[:6], 1, 2]))
    handles.append(pool.admit(PROMPT[:4]))
    assert [handle.lock_count for handle in handles] == [1, 1, 1, 4]
    assert pool.tree.num_evictable_blocks == 0
    while handles:
        pool.finish(handles.pop(len(handles) // 2))
        assert all(node.lock_count >= 0 for node in pool.tree)
    assert all(node.lock_count == 0 for node in pool.tree)
    assert pool.tree.num_evictable_blocks == pool.tree.num_cached_blocks == 5


class Rank(int):
    """A rank whose comparisons are instructions to count, wherever they are made."""

    def __lt__(self, other: int) -> bool:
        return int(self) < int(other)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int) and int(self) == int(other)

    __hash__ = int.__hash__


class CountingLRU(LRU):
    """Counts the leaves that it is asked about."""

    def __init__(self) -> None:
        self.num_ranked = 0

    def rank_by_use(self, node: Node) -> int:
        self.num_ranked += 1
        return Rank(super().rank_by_use(node))


def tree_of_leaves(num_leaves: int) -> tuple[RadixTree, CountingLRU]:
    """One block that all share, and as many leaves of one block below it."""
    policy = CountingLRU()
    tree = RadixTree(1, num_leaves + 1, policy)
    tree.release(tree.extend(tree.enter(Namespace()), pack_tokens([0]), [0]).node)
    for block in range(1, num_leaves + 1):
        stem = tree.acquire(tree.match_of_block(0), 1)
        tree.release(tree.extend(stem, pack_tokens([block]), [block]).node)
    return tree, policy


def evict_in_small_steps(tree: RadixTree, freed: list[int]) -> None:
    for _ in range(25):
        freed += tree.evict(8)


def test_the_cost_of_an_eviction_does_not_grow_with_the_tree() -> None:
    """Forty thousand leaves in a full pool, and room is made for a few blocks at a time.

    Counted are the instructions executed, comparisons in the heap included, and the leaves ranked,
    so that nothing depends on how fast the machine is. Four hundred leaves are the measure; the
    logarithm of a hundred times as many is less than twice as large.
    """
    costs = {}
    for num_leaves in (400, 40_000):
        tree, policy = tree_of_leaves(num_leaves)
        policy.num_ranked = 0
        freed: list[int] = []
        costs[num_leaves] = count_steps(partial(evict_in_small_steps, tree, freed))
        assert freed == list(range(1, 201))
        # Nothing but the leaves that went was looked at: they had been ranked before.
        assert policy.num_ranked == 0
    assert costs[40_000] < 2 * costs[400]


def test_the_cost_of_an_eviction_does_not_grow_with_what_has_been_in_use() -> None:
    """Every leaf is used again and again: the entries of their former ranks are no burden."""
    tree, policy = tree_of_leaves(1000)
    for _ in range(5):
        for block in range(1, 1001):
            tree.release(tree.acquire(tree.match_of_block(block), 2))
    assert len(tree._candidates._entries) <= 2 * 1000 + 64
    policy.num_ranked = 0
    assert tree.evict(100) == list(range(1, 101))
    assert policy.num_ranked == 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Namespace(adapter="bc", salt="a"), Namespace(adapter="c", salt="ab")),
        (Namespace(adapter="name"), Namespace(salt="name")),
        (Namespace(), Namespace(salt="")),
        (Namespace(), Namespace(adapter="")),
        (Namespace(salt="None"), Namespace(salt=None)),
        (Namespace(adapter=("lora", 1)), Namespace(adapter=("lora", 2))),
    ],
)
def test_namespaces_never_share(one: Namespace, other: Namespace) -> None:
    """Whatever the salts and the names of adapters are, and however they might be joined."""
    pool = Pool(block_size=4)
    pool.serve(PROMPT, one)
    assert pool.num_cached(PROMPT, one) == 12
    assert pool.num_cached(PROMPT, other) == 0
    pool.serve(PROMPT, other)
    assert pool.tree.num_cached_blocks == 6
    assert pool.evict(3) == [2, 1, 0]
    assert (pool.num_cached(PROMPT, one), pool.num_cached(PROMPT, other)) == (0, 12)


def test_a_prompt_of_whole_blocks_is_sent_again() -> None:
    """At least one token is computed, and the chain stays intact.

    The match is limited to all but the last token, so the last block is computed once more: its
    new copy takes the place of the old one, which nobody uses.
    """
    pool = Pool(block_size=4)
    pool.serve(PROMPT)
    for before, block in [(2, 50), (50, 51), (51, 52)]:
        match = pool.match(PROMPT, limit=11)
        assert match.num_tokens == 11
        handle = pool.tree.acquire(match, 2)
        extension = pool.tree.extend(handle, pack_tokens(PROMPT[8:]), [block])
        assert (extension.num_duplicates, extension.replaced) == (0, [before])
        assert pool.tree.path_blocks(extension.node, 3) == [0, 1, block]
        assert pool.finish(extension.node) == []
        assert pool.edges() == [(0, PROMPT, [0, 1, block])]


def test_the_match_succeeds_and_the_allocation_fails() -> None:
    """A prefix of two blocks is locked, and then there is no room for the rest of the prompt.

    Nothing stays locked, and the next attempt finds what is there by then.
    """
    pool = Pool(block_size=4, num_blocks=4)
    pool.serve(PROMPT[:8])
    other = pool.start([1] * 8)
    match = pool.match(PROMPT)
    handle = pool.tree.acquire(match, 2)
    assert pool.evict(1) == []
    assert pool.finish(handle) == []
    assert pool.tree.num_evictable_blocks == 2
    assert [node.lock_count for node in pool.tree if node.end == 8] in ([0, 1], [1, 0])
    # Another request takes a block of the prefix meanwhile.
    assert pool.evict(1) == [1]
    with pytest.raises(ValueError, match="look up again"):
        pool.tree.acquire(match, 2)
    match = pool.match(PROMPT)
    assert match.num_tokens == 4
    pool.finish(pool.tree.acquire(match, 1))
    pool.finish(other)


def test_an_abort_between_two_chunks() -> None:
    """Three blocks were given to the tree, and the KV of the first five tokens was computed.

    The block that is complete stays cached. The others are free, and no longer in the tree.
    """
    pool = Pool(block_size=4)
    handle = pool.start(PROMPT)
    assert sorted(pool.finish(handle, num_tokens=5)) == [1, 2]
    assert pool.edges() == [(0, PROMPT[:4], [0])]
    assert pool.tree.owner(1) is pool.tree.owner(2) is None
    assert pool.tree.num_cached_blocks == pool.tree.num_evictable_blocks == 1


def test_an_abort_while_another_request_shares_the_first_chunk() -> None:
    pool = Pool(block_size=4)
    handle = pool.start(PROMPT)
    other = pool.start([*PROMPT[:8], 1, 2, 3, 4])
    assert pool.finish(handle, num_tokens=4) == [2]
    # The other keeps the block that was not computed until it ends; nobody else finds it.
    assert pool.tree.path_blocks(other, 3) == [0, 1, 3]
    assert pool.num_cached(PROMPT) == 4


def test_one_block_is_needed_and_a_chain_of_three_is_cached() -> None:
    """Only the last block of the chain goes."""
    pool = Pool(block_size=4)
    pool.serve(PROMPT)
    assert pool.evict(1) == [2]
    assert pool.num_cached(PROMPT) == 8


def test_nothing_is_lost_or_free_twice_in_a_long_random_run() -> None:
    """Used, free and evictable blocks add up to the pool after every step."""
    rng = random.Random(0)
    pool = Pool(block_size=4, num_blocks=40)
    running: list[Node] = []
    for _ in range(2000):
        prompt = [rng.randrange(2) for _ in range(rng.randrange(1, 24))]
        if len(running) < 4 and rng.random() < 0.6:
            pool.evict(6 - len(pool.free))
            running.append(pool.start(prompt))
        elif running:
            handle = running.pop(rng.randrange(len(running)))
            pool.finish(handle, rng.choice([None, handle.end // 2]))
        assert len(set(pool.free)) == len(pool.free)
        assert len(pool.free) + pool.tree.num_cached_blocks == 40
    assert pool.tree.num_cached_blocks > 20
