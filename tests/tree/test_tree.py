# SPDX-License-Identifier: Apache-2.0
"""Each operation by example. Blocks hold four tokens, and are numbered as they are needed."""

import pickle
from collections.abc import Callable

import pytest

from vllm_radix.tree import Key, Namespace, Node, RadixTree, pack_tokens

from .pool import Pool, count_steps

# Two prompts that part inside their second block, after six tokens.
LONG = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
FORK = [1, 2, 3, 4, 5, 6, 70, 80]


@pytest.fixture
def pool() -> Pool:
    return Pool(block_size=4)


def test_a_block_holds_at_least_one_token() -> None:
    with pytest.raises(ValueError, match="block_size must be at least 1, not 0"):
        RadixTree(0, 8)


class TestMatch:
    def test_nothing_is_cached(self, pool: Pool) -> None:
        assert pool.match(LONG).num_tokens == 0
        assert pool.match([]).num_tokens == 0

    def test_every_token_counts(self, pool: Pool) -> None:
        pool.serve(LONG)
        for length in range(len(LONG) + 1):
            assert pool.num_cached(LONG[:length]) == length
            assert pool.num_cached([*LONG[:length], 99, 99]) == length

    def test_limit(self, pool: Pool) -> None:
        pool.serve(LONG)
        assert pool.match(LONG, limit=11).num_tokens == 11
        assert pool.match(LONG, limit=0).num_tokens == 0
        assert pool.match(LONG, limit=100).num_tokens == 12

    def test_below_a_fork(self, pool: Pool) -> None:
        pool.serve(LONG)
        pool.serve(FORK)
        assert pool.num_cached([*LONG, 13]) == 12
        assert pool.num_cached([*FORK, 13]) == 8
        assert pool.num_cached([1, 2, 3, 4, 5, 6, 99]) == 6

    def test_labels_are_compared_too(self, pool: Pool) -> None:
        pool.serve([1, -1, -1, 2])
        assert pool.num_cached([1, -1, -1, 2]) == 4
        assert pool.num_cached([1, -1, -2, 2]) == 2

    def test_looking_changes_nothing(self, pool: Pool) -> None:
        pool.serve(LONG)
        pool.serve(FORK)
        handle = pool.start([1, 2, 3, 4])
        before = pickle.dumps(pool.tree)
        for tokens in (LONG, FORK, LONG[:5], [9], []):
            match = pool.match(tokens, limit=7)
            pool.match(tokens, namespace=Namespace(salt="never seen"))
            num_blocks = match.num_tokens // 4
            pool.tree.path_blocks(match.node, num_blocks)
            pool.tree.num_protected_blocks(match.node, num_blocks)
            pool.tree.block_after(match, num_blocks)
        pool.tree.match_of_block(1)
        list(pool.tree.eviction_order())
        assert pickle.dumps(pool.tree) == before
        pool.finish(handle)


class TestWhereBlocksAre:
    def test_each_side_of_a_fork_has_the_block_in_which_they_part(self, pool: Pool) -> None:
        pool.serve(LONG)
        pool.serve(FORK)
        assert pool.edges() == [
            (0, [1, 2, 3, 4, 5, 6], [0]),
            (6, [7, 8, 9, 10, 11, 12], [1, 2]),
            (6, [70, 80], [3]),
        ]
        assert pool.tree.num_cached_blocks == pool.tree.num_evictable_blocks == 4

    def test_path_blocks(self, pool: Pool) -> None:
        pool.serve(LONG)
        pool.serve(FORK)
        assert pool.tree.path_blocks(pool.match(LONG).node, 3) == [0, 1, 2]
        assert pool.tree.path_blocks(pool.match(LONG).node, 2) == [0, 1]
        assert pool.tree.path_blocks(pool.match(FORK).node, 2) == [0, 3]
        assert pool.tree.path_blocks(pool.match([9]).node, 0) == []

    def test_owner(self, pool: Pool) -> None:
        pool.serve(LONG)
        pool.serve(FORK)
        assert pool.tree.owner(0) is pool.match([1, 2, 3, 4, 5]).node
        assert pool.tree.owner(1) is pool.tree.owner(2) is pool.match(LONG).node
        assert pool.tree.owner(3) is pool.match(FORK).node
        assert pool.tree.owner(4) is None

    def test_a_source_for_the_tokens_inside_a_block(self, pool: Pool) -> None:
        pool.serve(LONG)
        pool.serve(FORK)
        assert pool.tree.block_after(pool.match(LONG[:7]), 1) == 1
        assert pool.tree.block_after(pool.match(FORK[:7]), 1) == 3
        assert pool.tree.block_after(pool.match([1, 2]), 0) == 0
        assert pool.tree.block_after(pool.match(FORK[:7]), 0) == 0
        # Six tokens are in blocks 1 and 3 alike.
        assert pool.tree.block_after(pool.match([1, 2, 3, 4, 5, 6, 0, 0]), 1) in (1, 3)

    def test_a_source_cannot_be_what_is_gone(self, pool: Pool) -> None:
        pool.serve(LONG)
        pool.serve(FORK)
        pool.tree.detach(1)
        assert pool.tree.block_after(pool.match(LONG), 1) == 3

    def test_match_of_block(self, pool: Pool) -> None:
        pool.serve([*LONG, 13])
        for block, num_tokens in enumerate((4, 8, 12, 13)):
            match = pool.tree.match_of_block(block)
            assert match.num_tokens == num_tokens
            assert pool.tree.path_blocks(match.node, block + 1)[block] == block
        with pytest.raises(KeyError, match="no node owns block 9"):
            pool.tree.match_of_block(9)

    def test_protected_blocks(self, pool: Pool) -> None:
        pool.serve(LONG)
        node = pool.match(LONG).node
        assert pool.tree.num_protected_blocks(node, 3) == 0
        pool.admit(LONG, num_blocks=2)
        node = pool.match(LONG).node
        assert [pool.tree.num_protected_blocks(node, n) for n in range(4)] == [0, 1, 2, 2]


class TestAcquire:
    def test_the_path_is_locked_once(self, pool: Pool) -> None:
        pool.serve(LONG)
        handle = pool.admit(LONG)
        assert handle.end == 12
        assert handle.lock_count == 1
        assert pool.tree.num_evictable_blocks == 0
        assert pool.evict(3) == []
        pool.finish(handle)
        assert pool.tree.num_evictable_blocks == 3

    def test_part_of_an_edge(self, pool: Pool) -> None:
        pool.serve(LONG)
        handle = pool.admit(LONG, num_blocks=1)
        assert handle.end == 4
        assert pool.tree.num_evictable_blocks == 2
        assert pool.evict(3) == [2, 1]

    def test_no_block_at_all(self, pool: Pool) -> None:
        handle = pool.tree.enter(Namespace())
        assert (handle.end, handle.lock_count) == (0, 1)
        pool.finish(handle)
        assert list(pool.tree) == []

    def test_more_blocks_than_matched(self, pool: Pool) -> None:
        pool.serve(LONG)
        with pytest.raises(ValueError, match="a match of 7 tokens has no 2 blocks"):
            pool.tree.acquire(pool.match(LONG[:7]), 2)
        with pytest.raises(ValueError, match="a match of 7 tokens has no 0 blocks"):
            pool.tree.acquire(pool.match(LONG[:7]), 0)

    def test_void_after_eviction(self, pool: Pool) -> None:
        pool.serve(LONG)
        match = pool.match(LONG)
        pool.evict(1)
        with pytest.raises(ValueError, match="look up again"):
            pool.tree.acquire(match, 2)
        assert pool.tree.num_evictable_blocks == 2

    def test_good_after_what_only_splits_and_grows(self, pool: Pool) -> None:
        pool.serve(LONG)
        match = pool.match(LONG)
        other = pool.admit(LONG, num_blocks=1)
        pool.compute(other, [9] * 8)
        assert pool.tree.acquire(match, 3).end == 12
        assert pool.tree.path_blocks(pool.match(LONG).node, 3) == [0, 1, 2]

    def test_good_after_a_release_that_frees_nothing(self, pool: Pool) -> None:
        pool.serve(LONG)
        other = pool.start([9, 9, 9, 9])
        match = pool.match(LONG)
        pool.finish(other)
        assert pool.tree.acquire(match, 3).end == 12

    @pytest.mark.parametrize("num_blocks", [8, 512])
    def test_cost_is_that_of_the_path(self, num_blocks: int) -> None:
        pool = Pool(block_size=4, num_blocks=num_blocks)
        tokens = list(range(4 * num_blocks))
        pool.serve(tokens)
        match = pool.match(tokens)
        handles: list[Node] = []
        assert count_steps(lambda: handles.append(pool.tree.acquire(match, num_blocks))) < 500
        assert count_steps(lambda: pool.tree.release(handles.pop())) < 500


class TestExtend:
    def test_prefill_chunks_and_decoded_tokens_make_one_node(self, pool: Pool) -> None:
        handle = pool.start(LONG[:4])
        assert pool.compute(handle, LONG[4:8]) is handle
        assert pool.compute(handle, LONG[8:]) is handle
        assert pool.edges() == [(0, LONG, [0, 1, 2])]

    def test_a_node_that_others_use_does_not_grow(self, pool: Pool) -> None:
        first = pool.start(LONG[:4])
        second = pool.admit(LONG[:4])
        assert second is first
        longer = pool.compute(first, LONG[4:8])
        assert longer is not first
        assert (second.end, longer.start, longer.end) == (4, 4, 8)
        # The other leaves its part more recent. Once both have been used as recently, the chain is
        # one node again, and the handle stays what it was.
        pool.finish(second)
        assert pool.match(LONG).node is longer
        pool.finish(longer)
        assert pool.edges() == [(0, LONG[:8], [0, 1])]
        assert pool.match(LONG).node is longer

    def test_what_the_tree_has_stays_with_the_request(self, pool: Pool) -> None:
        first, second = pool.start([]), pool.start([])
        first = pool.tree.extend(first, pack_tokens(LONG), [10, 11, 12]).node
        extension = pool.tree.extend(second, pack_tokens(FORK), [20, 21])
        assert extension.num_duplicates == 1
        assert extension.freed == []
        assert pool.tree.owner(20) is None
        assert pool.tree.path_blocks(extension.node, 2) == [10, 21]
        assert pool.tree.path_blocks(first, 3) == [10, 11, 12]
        pool.tree.check()

    def test_all_of_it_is_there(self, pool: Pool) -> None:
        pool.serve(LONG)
        extension = pool.tree.extend(pool.tree.enter(Namespace()), pack_tokens(LONG[:8]), [8, 9])
        assert (extension.num_duplicates, extension.replaced, extension.freed) == (0, [0, 1], [])
        assert extension.node.end == 8
        assert pool.tree.path_blocks(pool.match(LONG).node, 3) == [8, 9, 2]
        assert pool.evict(9) == [2]

    def test_some_of_it_is_there_and_some_of_that_in_use(self, pool: Pool) -> None:
        """What others use stays, the idle copies behind it go."""
        pool.serve(LONG)
        user = pool.admit(LONG, num_blocks=1)
        extension = pool.tree.extend(
            pool.tree.enter(Namespace()), pack_tokens([*LONG, *range(70, 74)]), [20, 21, 22, 23]
        )
        assert (extension.num_duplicates, extension.replaced, extension.freed) == (1, [1, 2], [])
        assert pool.tree.path_blocks(extension.node, 4) == [0, 21, 22, 23]
        assert [pool.tree.owner(block) for block in (1, 2, 20)] == [None] * 3
        pool.tree.check()
        pool.tree.release(extension.node)
        pool.tree.release(user)
        assert pool.evict(9) == [23, 22, 21, 0]

    def test_a_handle_stays_good_through_a_split(self, pool: Pool) -> None:
        handle = pool.start(LONG)
        pool.start(FORK)
        assert (handle.start, handle.end) == (6, 12)
        assert pool.tree.path_blocks(handle, 3) == [0, 1, 2]


class TestTail:
    def test_a_partly_filled_block_is_found(self, pool: Pool) -> None:
        pool.serve(LONG[:6])
        assert pool.edges() == [(0, LONG[:6], [0, 1])]
        assert pool.num_cached(LONG) == 6
        assert pool.tree.block_after(pool.match(LONG), 1) == 1

    def test_a_longer_one_takes_its_place(self, pool: Pool) -> None:
        pool.serve(LONG[:5])
        handle = pool.admit(LONG)
        extension = pool.tree.add_tail(handle, pack_tokens(LONG[4:7]), 9)
        assert (extension.num_duplicates, extension.freed) == (0, [1])
        assert pool.edges() == [(0, LONG[:7], [0, 9])]

    def test_a_full_one_takes_its_place(self, pool: Pool) -> None:
        pool.serve(LONG[:5])
        handle = pool.admit(LONG)
        extension = pool.tree.extend(handle, pack_tokens(LONG[4:8]), [9])
        assert (extension.num_duplicates, extension.freed) == (0, [1])
        assert pool.edges() == [(0, LONG[:8], [0, 9])]

    def test_only_the_partly_filled_block_gives_way(self, pool: Pool) -> None:
        """Someone who started before it was cached computes the whole prompt, and more."""
        pool.serve(LONG[:6])
        extension = pool.tree.extend(pool.tree.enter(Namespace()), pack_tokens(LONG[:8]), [8, 9])
        assert (extension.num_duplicates, extension.replaced, extension.freed) == (0, [0], [1])
        assert pool.edges() == [(0, LONG[:8], [8, 9])]

    def test_a_shorter_one_is_not_kept(self, pool: Pool) -> None:
        pool.serve(LONG[:7])
        handle = pool.admit(LONG)
        extension = pool.tree.add_tail(handle, pack_tokens(LONG[4:6]), 9)
        assert (extension.num_duplicates, extension.freed) == (1, [])
        assert extension.node is handle
        assert pool.tree.owner(9) is None
        assert pool.edges() == [(0, LONG[:4], [0]), (4, LONG[4:7], [1])]

    def test_of_two_that_are_alike_the_first_is_used(self, pool: Pool) -> None:
        pool.serve(LONG[:7])
        pool.serve([9, 9, 9, 9])
        handle = pool.admit(LONG)
        extension = pool.tree.add_tail(handle, pack_tokens(LONG[4:7]), 9)
        assert (extension.num_duplicates, extension.freed) == (1, [])
        assert extension.node.end == 7
        assert pool.tree.path_blocks(extension.node, 2) == [0, 1]
        pool.finish(extension.node)
        assert pool.evict(3) == [2, 1, 0]

    def test_another_one_lives_beside_it(self, pool: Pool) -> None:
        pool.serve(LONG[:7])
        pool.serve([*LONG[:6], 70])
        assert pool.edges() == [(0, LONG[:6], [0]), (6, [7], [1]), (6, [70], [2])]

    def test_one_in_use_outlives_the_one_that_takes_its_place(self, pool: Pool) -> None:
        owner = pool.start(LONG[:5])
        other = pool.start(LONG[:8])
        assert pool.edges() == [(0, LONG[:4], [0]), (4, LONG[4:8], [2])]
        assert pool.tree.path_blocks(owner, 2) == [0, 1]
        pool.finish(other)
        assert pool.evict(9) == [2]
        assert pool.finish(owner) == [1]
        assert pool.evict(9) == [0]


class TestRelease:
    def test_of_what_was_not_computed(self, pool: Pool) -> None:
        handle = pool.start(LONG)
        assert pool.finish(handle, num_tokens=8) == [2]
        assert pool.num_cached(LONG) == 8

    def test_of_a_block_that_was_computed_in_part(self, pool: Pool) -> None:
        handle = pool.start(LONG)
        assert sorted(pool.finish(handle, num_tokens=7)) == [1, 2]
        assert pool.num_cached(LONG) == 4

    def test_of_nothing_computed(self, pool: Pool) -> None:
        handle = pool.start(LONG)
        assert sorted(pool.finish(handle, num_tokens=0)) == [0, 1, 2]
        assert list(pool.tree) == []

    def test_what_others_use_stays_with_them_and_is_not_found(self, pool: Pool) -> None:
        handle = pool.start(LONG)
        other = pool.admit(LONG, num_blocks=2)
        assert pool.finish(handle, num_tokens=0) == [2]
        assert pool.tree.path_blocks(other, 2) == [0, 1]
        assert pool.num_cached(LONG) == 0
        assert sorted(pool.finish(other)) == [0, 1]

    def test_what_others_built_upon_goes_with_it(self, pool: Pool) -> None:
        handle = pool.start(LONG)
        pool.serve(FORK)
        assert sorted(pool.finish(handle, num_tokens=0)) == [0, 1, 2, 3]
        assert pool.num_cached(FORK) == 0


class TestHold:
    def test_the_prefix_up_to_a_block_stays(self, pool: Pool) -> None:
        pool.serve(LONG)
        hold = pool.tree.hold(1)
        pool.tree.check()
        assert pool.evict(9) == [2]
        assert pool.tree.release(hold, used=False) == []
        assert pool.evict(9) == [1, 0]

    def test_a_partly_filled_block(self, pool: Pool) -> None:
        pool.serve(LONG[:6])
        hold = pool.tree.hold(1)
        assert hold.end == 6
        # Its content moves on; the copy that is held stays as it is.
        pool.serve(LONG[:8])
        assert pool.evict(9) == [2]
        assert pool.tree.release(hold, used=False) == [1]

    def test_no_such_block(self, pool: Pool) -> None:
        with pytest.raises(KeyError, match="no node owns block 7"):
            pool.tree.hold(7)

    def test_is_no_use(self, pool: Pool) -> None:
        pool.serve(LONG[:4])
        pool.serve([9, 9, 9, 9])
        pool.tree.release(pool.tree.hold(0), used=False)
        assert pool.evict(1) == [0]

    def test_does_not_make_what_it_holds_as_recent_as_what_is_above(self, pool: Pool) -> None:
        pool.serve(LONG[:8])
        pool.serve([9, 9, 9, 9])
        hold = pool.tree.hold(1)
        pool.finish(pool.admit(LONG, num_blocks=1))
        pool.tree.release(hold, used=False)
        pool.tree.check()
        # Of 1 (the oldest), 2 and 0 (just used), in this order.
        assert pool.evict(9) == [1, 2, 0]

    def test_below_a_node_that_is_more_recent(self, pool: Pool) -> None:
        pool.serve(LONG[:8])
        pool.finish(pool.admit(LONG, num_blocks=1))
        pool.tree.hold(1)
        pool.tree.check()
        assert pool.tree.num_evictable_blocks == 0


class TestEvict:
    def test_from_the_tail_and_no_more_than_asked_for(self, pool: Pool) -> None:
        pool.serve(LONG)
        assert pool.evict(1) == [2]
        assert pool.evict(0) == []
        assert pool.num_cached(LONG) == 8
        assert pool.evict(1) == [1]
        assert pool.evict(5) == [0]
        assert list(pool.tree) == []

    def test_the_order(self, pool: Pool) -> None:
        pool.serve(LONG)
        pool.serve(FORK)
        pool.serve([9, 9, 9, 9])
        order = [2, 1, 3, 0, 4]
        assert list(pool.tree.eviction_order()) == order
        assert [block for _ in order for block in pool.evict(1)] == order

    def test_the_last_piece_of_a_fork_goes_with_its_last_block(self, pool: Pool) -> None:
        pool.serve(LONG)
        pool.serve(FORK)
        assert pool.evict(3) == [2, 1, 3]
        # Six tokens were shared, and no block holds the last two of them any more.
        assert pool.edges() == [(0, LONG[:4], [0])]

    def test_a_node_left_with_one_child_becomes_one_with_it(self, pool: Pool) -> None:
        pool.serve(LONG)
        handle = pool.start(FORK)
        assert pool.evict(2) == [2, 1]
        assert pool.edges() == [(0, FORK, [0, 3])]
        assert pool.match(FORK).node is handle


class TestDetach:
    def test_nobody_uses_it(self, pool: Pool) -> None:
        pool.serve(LONG)
        assert sorted(pool.tree.detach(1)) == [1, 2]
        pool.tree.check()
        assert pool.num_cached(LONG) == 4

    def test_it_goes_with_its_last_user(self, pool: Pool) -> None:
        handle, other = pool.start(LONG), pool.start(LONG)
        assert pool.tree.detach(1) == []
        pool.tree.check()
        assert pool.num_cached(LONG) == 4
        assert pool.tree.path_blocks(handle, 3) == [0, 1, 2]
        assert pool.finish(other) == []
        assert sorted(pool.finish(handle)) == [1, 2]
        assert pool.tree.num_evictable_blocks == 1

    def test_twice(self, pool: Pool) -> None:
        handle = pool.start(LONG)
        assert pool.tree.detach(0) == pool.tree.detach(1) == pool.tree.detach(0) == []
        pool.tree.check()
        assert sorted(pool.finish(handle)) == [0, 1, 2]

    def test_it_can_be_computed_anew(self, pool: Pool) -> None:
        handle = pool.start(LONG)
        pool.tree.detach(0)
        pool.serve(LONG)
        assert pool.num_cached(LONG) == 12
        assert sorted(pool.finish(handle)) == [0, 1, 2]
        assert pool.num_cached(LONG) == 12

    def test_a_request_goes_on_unseen(self, pool: Pool) -> None:
        handle = pool.start(LONG[:8])
        pool.tree.detach(1)
        handle = pool.compute(handle, LONG[8:])
        assert pool.num_cached(LONG) == 4
        assert sorted(pool.finish(handle)) == [1, 2]

    def test_both_sides_of_a_fork(self, pool: Pool) -> None:
        handles = [pool.start(LONG), pool.start(FORK)]
        pool.tree.detach(1)
        assert pool.num_cached(LONG) == 6
        pool.tree.detach(3)
        pool.tree.check()
        # Tokens 5 and 6 were in these two blocks only.
        assert pool.num_cached(LONG) == pool.num_cached(FORK) == 4
        assert sorted(block for h in handles for block in pool.finish(h)) == [1, 2, 3]
        assert pool.edges() == [(0, LONG[:4], [0])]

    def test_what_no_block_holds_can_be_cached_again(self, pool: Pool) -> None:
        pool.start(LONG)
        pool.start(FORK)
        pool.tree.detach(1)
        pool.tree.detach(3)
        pool.serve(LONG[:5])
        assert pool.num_cached(LONG) == 5
        pool.serve(LONG[:6])
        assert pool.num_cached(LONG) == 6

    def test_forks_in_one_block(self, pool: Pool) -> None:
        """Three prompts part after five and six tokens, so two nodes end inside block 1.

        Two of the three copies of that block are detached, and the third is evicted.
        """
        handles = [pool.start(LONG), pool.start(FORK)]
        pool.serve([*LONG[:5], 90, 91, 92])
        pool.tree.detach(1)
        pool.tree.detach(3)
        assert pool.num_cached(LONG) == 5
        assert pool.tree.block_after(pool.match(LONG), 1) == 4
        assert pool.evict(1) == [4]
        assert pool.num_cached(LONG) == 4
        assert sorted(block for h in handles for block in pool.finish(h)) == [1, 2, 3]
        assert pool.edges() == [(0, LONG[:4], [0])]

    def test_no_such_block(self, pool: Pool) -> None:
        with pytest.raises(KeyError, match="no node owns block 5"):
            pool.tree.detach(5)


class TestClear:
    def test_everything_goes(self, pool: Pool) -> None:
        pool.serve(LONG)
        pool.serve(FORK, namespace=Namespace(salt="s"))
        assert sorted(pool.tree.clear()) == [0, 1, 2, 3, 4]
        pool.tree.check()
        assert pool.tree.num_cached_blocks == pool.tree.num_evictable_blocks == 0
        assert pool.num_cached(LONG) == 0
        assert pool.evict(1) == []
        pool.serve(LONG)
        assert pool.num_cached(LONG) == 12

    def test_not_while_something_is_in_use(self, pool: Pool) -> None:
        handle = pool.start(LONG)
        pool.tree.detach(0)
        with pytest.raises(ValueError, match="the tree is in use: release every handle first"):
            pool.tree.clear()
        pool.finish(handle)
        assert pool.tree.clear() == []

    def test_a_match_from_before_is_void(self, pool: Pool) -> None:
        pool.serve(LONG)
        match = pool.match(LONG)
        pool.tree.clear()
        with pytest.raises(ValueError, match="look up again"):
            pool.tree.acquire(match, 1)


class TestCheck:
    """The check finds what it is for."""

    @pytest.mark.parametrize(
        "damage",
        [
            lambda tree, node: node.blocks.append(7),
            lambda tree, node: node.blocks.pop(),
            lambda tree, node: node.blocks.__setitem__(0, 0),
            lambda tree, node: node.edge.__delitem__(slice(0, 4)),
            lambda tree, node: setattr(node, "lock_count", -1),
            lambda tree, node: setattr(node, "lock_count", 2),
            lambda tree, node: setattr(node, "detached", True),
            lambda tree, node: setattr(node, "ticket", 0),
            lambda tree, node: setattr(node, "start", 5),
            lambda tree, node: setattr(node, "parent", Node(None, 0, bytearray(), [])),
            lambda tree, node: setattr(node, "cell", None) or tree._file(node.blocks, None),
            lambda tree, node: node.parent.children.pop(7),
            lambda tree, node: node.parent.children.update({8: node}),
            lambda tree, node: setattr(tree, "num_cached_blocks", 5),
            lambda tree, node: setattr(tree, "num_evictable_blocks", 5),
        ],
    )
    def test_damage(self, pool: Pool, damage: Callable[[RadixTree, Node], object]) -> None:
        pool.serve(LONG)
        pool.serve(FORK)
        pool.tree.check()
        damage(pool.tree, pool.match(LONG).node)
        with pytest.raises(AssertionError):
            pool.tree.check()

    def test_a_chain_in_two_nodes(self, pool: Pool) -> None:
        pool.serve(LONG)
        pool.tree._split(pool.match(LONG).node, 4)
        with pytest.raises(AssertionError, match="ought to be one with"):
            pool.tree.check()


def test_keys_of_different_namespaces_share_nothing(pool: Pool) -> None:
    spaces = [Namespace(), Namespace("a"), Namespace(salt="a"), Namespace("a", "a")]
    for space in spaces:
        assert pool.num_cached(LONG, space) == 0
        pool.serve(LONG, space)
    assert pool.tree.num_cached_blocks == 12
    blocks = [pool.tree.path_blocks(pool.match(LONG, None, s).node, 3) for s in spaces]
    assert blocks == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]


def test_a_key_is_what_it_is_made_of() -> None:
    key = Key.of([1, -2, 3], Namespace("adapter", "salt"))
    assert key.tokens.tolist() == [1, -2, 3]
