# SPDX-License-Identifier: Apache-2.0
"""Who goes first: the policies, by example, and the heap that serves them."""

import random

import pytest

from vllm_radix.tree import (
    POLICIES,
    Bookmark,
    Namespace,
    Node,
    RadixTree,
    make_policy,
    pack_tokens,
)
from vllm_radix.tree.eviction import LRU, EvictionHeap

from .pool import Pool


def test_policies_by_name() -> None:
    assert list(POLICIES) == ["lru", "lfu", "slru", "priority"]
    assert [make_policy(name).name for name in POLICIES] == list(POLICIES)


def test_an_unknown_policy() -> None:
    with pytest.raises(ValueError) as error:
        make_policy("fifo")
    assert str(error.value) == (
        "unknown eviction policy 'fifo': choose one of lru, lfu, slru, priority"
    )


def test_the_default_is_lru() -> None:
    tree = RadixTree(1, 8)
    for block in range(3):
        tree.release(tree.extend(tree.enter(Namespace()), pack_tokens([block]), [block]).node)
    tree.release(tree.acquire(tree.match_of_block(0), 1))
    assert tree.evict(3) == [1, 2, 0]


def serve_each(pool: Pool, *prompts: list[int]) -> None:
    for prompt in prompts:
        pool.serve(prompt)


class TestByExample:
    """Blocks of one token, numbered in the order in which they are first computed."""

    def test_lru(self) -> None:
        pool = Pool(block_size=1)
        serve_each(pool, [10], [11], [12], [10], [10], [11])
        assert pool.evict(3) == [2, 0, 1]

    def test_lfu(self) -> None:
        pool = Pool(block_size=1, policy="lfu")
        # Reused twice, never, once, never.
        serve_each(pool, [10], [10], [10], [11], [12], [12], [13])
        assert pool.evict(4) == [1, 3, 2, 0]

    def test_slru(self) -> None:
        pool = Pool(block_size=1, policy="slru")
        # A burst of prompts seen once does not flush the two that were reused.
        serve_each(pool, [10], [11], [11], [10])
        serve_each(pool, [20], [21], [22], [23])
        assert pool.evict(6) == [2, 3, 4, 5, 1, 0]

    def test_priority(self) -> None:
        pool = Pool(block_size=1, policy="priority")
        for token, priority in ((10, 0), (11, 5), (12, 1), (13, 5)):
            pool.serve([token], priority=priority)
        assert pool.evict(4) == [1, 3, 2, 0]

    def test_an_important_request_makes_important(self) -> None:
        pool = Pool(block_size=1, policy="priority")
        pool.serve([10], priority=5)
        pool.serve([11], priority=5)
        pool.serve([10], priority=0)
        pool.serve([11], priority=5)
        assert pool.evict(2) == [1, 0]


class TestBelowAPrefixThatIsWorthMore:
    """Blocks 1 and 2 were used once and follow block 0, which was used often."""

    def test_slru(self) -> None:
        pool = Pool(block_size=1, policy="slru")
        serve_each(pool, [10], [10, 11], [10, 12], [20])
        assert pool.evict(4) == [1, 2, 3, 0]

    def test_lfu(self) -> None:
        pool = Pool(block_size=1, policy="lfu")
        serve_each(pool, [10], [10, 11], [10, 12], [20], [20])
        assert pool.evict(4) == [1, 2, 3, 0]

    def test_priority(self) -> None:
        pool = Pool(block_size=1, policy="priority")
        for prompt, priority in (([10], 0), ([10, 11], 5), ([10, 12], 5), ([20], 3)):
            pool.serve(prompt, priority=priority)
        assert pool.evict(4) == [1, 2, 3, 0]

    @pytest.mark.parametrize("policy", ["slru", "lfu"])
    def test_one_of_them_goes_and_the_other_follows(self, policy: str) -> None:
        """What is left after the first eviction is a chain: its end is still worth less."""
        pool = Pool(block_size=1, policy=policy)
        serve_each(pool, [10], [10], [10, 11], [10, 12], [20])
        assert [block for _ in range(4) for block in pool.evict(1)] == [1, 2, 3, 0]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("second", [0, 1, 2])
def test_a_conversation(policy: str, first: int, second: int) -> None:
    """Each turn goes on where the one before has ended, and nothing else is cached."""
    pool = Pool(block_size=1, policy=policy)
    for length in range(1, 6):
        pool.serve(list(range(length)), priority=second if length % 2 else first)
    assert pool.evict(9) == [4, 3, 2, 1, 0]


def leaf(last_access: int) -> Node:
    node = Node(None, 0, bytearray(), [])
    node.last_access = last_access
    return node


class TestWanted:
    """Blocks of one token, numbered in the order in which they are first computed."""

    def test_what_is_wanted_goes_last_the_last_of_it_first(self) -> None:
        pool = Pool(block_size=1)
        serve_each(pool, [10], [11], [12], [13])
        assert pool.tree.want([pool.match([10]), pool.match([12])]) == [1, 2]
        assert list(pool.tree.eviction_order()) == [1, 3, 2, 0]
        assert pool.evict(4) == [1, 3, 2, 0]

    def test_what_follows_a_wanted_prefix_is_not_wanted(self) -> None:
        pool = Pool(block_size=1)
        serve_each(pool, [10, 11, 12, 13], [20])
        assert pool.tree.want([pool.match([10, 11, 99])]) == [2]
        assert list(pool.tree.eviction_order()) == [3, 2, 4, 1, 0]
        assert pool.evict(1) == [3]
        assert pool.evict(2) == [2, 4]
        assert pool.num_cached([10, 11]) == 2

    def test_a_block_that_is_wanted_in_part_is_wanted(self) -> None:
        pool = Pool(block_size=4)
        serve_each(pool, list(range(12)), [20] * 4)
        assert pool.tree.want([pool.match([0, 1, 2, 3, 4, 99])]) == [2]
        assert pool.evict(2) == [2, 3]

    def test_it_counts_once_what_several_want(self) -> None:
        pool = Pool(block_size=1)
        serve_each(pool, [10, 11, 12], [10, 11, 22])
        matches = [pool.match(tokens) for tokens in ([10, 11, 12], [10, 11], [10, 11, 22], [7])]
        assert pool.tree.want(matches) == [3, 3, 4, 4]

    def test_what_is_in_use_does_not_count(self) -> None:
        pool = Pool(block_size=1)
        pool.serve([10, 11, 12])
        handle = pool.admit([10, 11])
        assert pool.tree.want([pool.match([10, 11, 12])]) == [1]
        pool.finish(handle)
        assert pool.tree.want([pool.match([10, 11, 12])]) == [3]

    def test_it_holds_until_something_else_is_said(self) -> None:
        pool = Pool(block_size=1)
        serve_each(pool, [10], [11], [12])
        pool.tree.want([pool.match([10])])
        assert pool.evict(1) == [1]
        pool.tree.want([])
        assert pool.evict(2) == [0, 2]

    def test_both_parts_of_a_split_are_wanted(self) -> None:
        pool = Pool(block_size=1)
        serve_each(pool, [10, 11, 12], [20])
        pool.tree.want([pool.match([10, 11, 12])])
        pool.finish(pool.admit([10]))
        assert pool.evict(1) == [3]

    def test_wanting_is_no_use(self) -> None:
        pool = Pool(block_size=1)
        serve_each(pool, [10], [11])
        pool.tree.want([pool.match([10])])
        pool.tree.want([])
        assert pool.evict(1) == [0]


def expire(pool: Pool, tokens: list[int], num_marked: int = 0) -> None:
    """A prefix expires, another bookmark stands in it after ``num_marked`` tokens, if any."""
    match = pool.match(tokens)
    assert match.num_tokens == len(tokens)
    bookmark = Bookmark(survives_cut=False)
    pool.tree.place(bookmark, match.node)
    # As if it had been placed before its node grew.
    bookmark.num_tokens = len(tokens)
    if num_marked:
        other = Bookmark(survives_cut=False)
        pool.tree.place(other, pool.match(tokens[:num_marked]).node)
        other.num_tokens = num_marked
    pool.tree.expire(bookmark)
    pool.tree.remove(bookmark)
    pool.tree.check()


class TestExpired:
    """Blocks of one token, numbered in the order in which they are first computed."""

    def test_it_goes_first_until_it_is_used(self) -> None:
        pool = Pool(block_size=1)
        serve_each(pool, [10], [11], [12])
        expire(pool, [12])
        expire(pool, [11])
        pool.serve([12])
        assert pool.evict(3) == [1, 0, 2]

    def test_whoever_computes_it_once_more_uses_it(self) -> None:
        pool = Pool(block_size=1)
        handle = pool.start([])
        serve_each(pool, [10, 11], [20])
        expire(pool, [10, 11])
        pool.finish(pool.compute(handle, [10, 11]))
        # In copies of its own, which took the places of the idle ones.
        assert pool.evict(3) == [2, 4, 3]

    def test_the_partly_filled_end_of_a_prompt_that_is_repeated(self) -> None:
        pool = Pool(block_size=4)
        serve_each(pool, [10] * 6, [20] * 4)
        expire(pool, [10] * 6)
        pool.serve([10] * 6)
        assert pool.evict(3) == [2, 1, 0]

    def test_not_while_it_is_in_use(self) -> None:
        pool = Pool(block_size=1)
        serve_each(pool, [10], [11, 12])
        handle = pool.admit([11, 12])
        expire(pool, [11])
        expire(pool, [11, 12])
        pool.finish(handle)
        assert pool.evict(3) == [0, 2, 1]

    def test_what_goes_on_from_it_keeps_its_place(self) -> None:
        pool = Pool(block_size=1)
        serve_each(pool, [10, 11, 12], [20], [30])
        expire(pool, [10, 11])
        assert list(pool.tree.eviction_order()) == [2, 1, 0, 3, 4]
        pool.serve([10, 11, 12])
        serve_each(pool, [20])
        expire(pool, [10, 11])
        assert pool.evict(5) == [4, 2, 1, 0, 3]

    def test_it_ends_inside_a_block(self) -> None:
        pool = Pool(block_size=4)
        serve_each(pool, [10] * 10, [20] * 4)
        expire(pool, [10] * 6)
        assert pool.edges()[:2] == [(0, [10] * 6, [0]), (0, [20] * 4, [3])]
        pool.serve([20] * 4)
        assert pool.evict(4) == [2, 1, 0, 3]

    def test_what_others_share_keeps_its_place(self) -> None:
        pool = Pool(block_size=1)
        serve_each(pool, [10, 11], [20], [10, 12])
        expire(pool, [10, 12])
        assert pool.evict(4) == [3, 1, 2, 0]

    def test_what_was_used_since_keeps_its_place(self) -> None:
        pool = Pool(block_size=1)
        serve_each(pool, [10, 11, 12, 13], [20])
        pool.serve([10, 11])
        expire(pool, [10, 11, 12, 13])
        assert pool.evict(5) == [3, 2, 4, 1, 0]

    @pytest.mark.parametrize("num_marked", [1, 2])
    def test_what_another_bookmark_ends_with_keeps_its_place(self, num_marked: int) -> None:
        """Whether that is inside the node or, after a fork, at the end of the one above."""
        pool = Pool(block_size=1)
        serve_each(pool, [10, 11, 21], [20], [10, 11, 12, 13])
        assert pool.evict(1) == [2]
        expire(pool, [10, 11, 12, 13], num_marked)
        kept = [1, 0] if num_marked == 2 else [0]
        first = [block for block in (5, 4, 1, 0) if block not in kept]
        assert pool.evict(5) == [*first, 3, *kept]

    @pytest.mark.parametrize("policy", POLICIES)
    def test_all_the_nodes_of_a_chain(self, policy: str) -> None:
        """Parts of different ranks, as a conversation leaves them behind."""
        pool = Pool(block_size=1, policy=policy)
        serve_each(pool, [20], [10], [10, 11], [10, 11, 12])
        expire(pool, [10, 11, 12])
        assert pool.evict(4) == [3, 2, 1, 0]

    def test_of_two_the_longer_one_first(self) -> None:
        pool = Pool(block_size=1)
        pool.serve([10, 11, 12])
        expire(pool, [10, 11, 12], num_marked=1)
        assert len(pool.edges()) == 2
        expire(pool, [10])
        assert len(pool.edges()) == 1

    def test_it_may_be_gone(self) -> None:
        pool = Pool(block_size=1)
        pool.serve([10])
        pool.tree.expire(Bookmark(survives_cut=False))
        assert pool.evict(1) == [0]


class TestHeap:
    def test_first_stays(self) -> None:
        heap = EvictionHeap(LRU())
        assert heap.first() is None
        nodes = [leaf(2), leaf(1), leaf(3)]
        for node in nodes:
            heap.add(node)
        assert heap.first() is heap.first() is nodes[1]
        assert len(heap) == 3
        heap.discard(nodes[1])
        assert heap.first() is nodes[0]

    def test_of_one_rank_the_first_come(self) -> None:
        heap = EvictionHeap(LRU())
        nodes = [leaf(1) for _ in range(5)]
        for node in nodes:
            heap.add(node)
        for node in nodes:
            assert heap.first() is node
            heap.discard(node)

    def test_leaving_twice_is_leaving_once(self) -> None:
        heap = EvictionHeap(LRU())
        node, other = leaf(1), leaf(2)
        heap.add(node)
        heap.add(other)
        heap.discard(node)
        heap.discard(node)
        assert len(heap) == 1

    def test_a_node_that_comes_back_has_its_new_rank(self) -> None:
        heap = EvictionHeap(LRU())
        old, other = leaf(1), leaf(2)
        heap.add(old)
        heap.add(other)
        heap.discard(old)
        old.last_access = 3
        heap.add(old)
        assert heap.first() is other
        heap.discard(other)
        assert heap.first() is old

    def test_clear(self) -> None:
        heap = EvictionHeap(LRU())
        node = leaf(1)
        heap.add(node)
        heap.clear()
        assert (len(heap), heap.first(), node.ticket) == (0, None, 0)

    def test_a_copy_leaves_the_nodes_as_they_are(self) -> None:
        heap = EvictionHeap(LRU())
        nodes = [leaf(3), leaf(1), leaf(2), leaf(0)]
        for node in nodes:
            heap.add(node)
        heap.discard(nodes[3])
        copy = heap.unspared_copy()
        copy.push(leaf(2))
        assert [node.last_access for node in iter(copy.pop, None)] == [1, 2, 2, 3]
        assert (len(heap), heap.first()) == (3, nodes[1])

    def test_the_spared_come_last_and_return_to_their_places(self) -> None:
        heap = EvictionHeap(LRU())
        nodes = [leaf(age) for age in range(4)]
        for place, node in enumerate(nodes):
            node.wanted_place = place
            heap.add(node)
        for node in nodes[:2]:
            heap.spare(node)
        assert [node.last_access for node in iter(heap.unspared_copy().pop, None)] == [2, 3]
        assert [node.last_access for node in iter(heap.spared_copy().pop, None)] == [1, 0]
        for node in nodes[2:]:
            assert (heap.first(), heap.all_spared) == (node, False)
            heap.discard(node)
        # Of the spared, the one that is wanted last.
        assert (heap.first(), heap.all_spared) == (nodes[1], True)
        heap.end_sparing()
        assert (heap.first(), heap.all_spared) == (nodes[0], False)
        assert len(heap) == 2

    def test_clearing_ends_the_sparing(self) -> None:
        heap = EvictionHeap(LRU())
        node = leaf(1)
        heap.add(node)
        heap.spare(node)
        heap.clear()
        heap.end_sparing()
        assert (len(heap), heap.first(), node.ticket) == (0, None, 0)

    def test_entries_without_a_ticket_stay_few(self) -> None:
        """Through 5000 arrivals and departures, in phases that favour the one or the other."""
        rng = random.Random(0)
        heap = EvictionHeap(LRU())
        inside: list[Node] = []
        for step in range(5000):
            if not inside or rng.random() < (0.8 if step % 2000 < 1000 else 0.2):
                node = leaf(rng.randrange(100))
                heap.add(node)
                inside.append(node)
            else:
                heap.discard(inside.pop(rng.randrange(len(inside))))
            assert len(heap) == len(inside)
            assert len(heap._entries) - len(inside) <= len(inside) + 64
            if step % 50 == 0 and inside:
                first = heap.first()
                assert first is not None
                assert first.last_access == min(node.last_access for node in inside)
