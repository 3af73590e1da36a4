# SPDX-License-Identifier: Apache-2.0
"""Where the tree moves a bookmark. Blocks hold four tokens, and are numbered as they are needed."""

import gc
import weakref

import pytest

from vllm_radix.tree import Bookmark, Namespace, Node

from .pool import Pool

LONG = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
FORK = [1, 2, 3, 4, 5, 6, 70, 80]


@pytest.fixture
def pool() -> Pool:
    return Pool(block_size=4)


def placed(pool: Pool, tokens: list[int], *, survives_cut: bool = True) -> Bookmark:
    """A bookmark at the end of these tokens, which have to be cached."""
    node = pool.match(tokens).node
    assert node.end == len(tokens)
    bookmark = Bookmark(survives_cut=survives_cut)
    pool.tree.place(bookmark, node)
    return bookmark


def assert_marks(pool: Pool, bookmark: Bookmark, tokens: list[int]) -> None:
    pool.tree.check()
    match = pool.match(tokens)
    assert match.num_tokens == bookmark.num_tokens == len(tokens)
    assert bookmark.node is match.node


def assert_gone(pool: Pool, *bookmarks: Bookmark) -> None:
    pool.tree.check()
    assert [bookmark.node for bookmark in bookmarks] == [None] * len(bookmarks)
    assert all(node.bookmarks is None for node in pool.tree.all_nodes())


class TestPlace:
    def test_at_the_end_of_a_node(self, pool: Pool) -> None:
        pool.serve(LONG)
        assert_marks(pool, placed(pool, LONG), LONG)

    def test_once(self, pool: Pool) -> None:
        pool.serve(LONG)
        pool.serve([9] * 4)
        bookmark = placed(pool, LONG)
        pool.tree.place(bookmark, pool.match([9] * 4).node)
        assert_marks(pool, bookmark, [9] * 4)
        assert pool.match(LONG).node.bookmarks is None

    def test_not_at_a_root(self, pool: Pool) -> None:
        root = pool.tree.enter(Namespace())
        with pytest.raises(ValueError, match="is the end of no cached prefix"):
            pool.tree.place(Bookmark(survives_cut=True), root)

    def test_not_where_nothing_is_found(self, pool: Pool) -> None:
        handle = pool.start(LONG)
        pool.tree.detach(0)
        with pytest.raises(ValueError, match="is the end of no cached prefix"):
            pool.tree.place(Bookmark(survives_cut=True), handle)

    def test_remove(self, pool: Pool) -> None:
        pool.serve(LONG)
        bookmark = placed(pool, LONG)
        pool.tree.remove(bookmark)
        assert_gone(pool, bookmark)
        pool.tree.remove(bookmark)
        assert_gone(pool, bookmark)


class TestMoves:
    def test_it_is_no_use(self, pool: Pool) -> None:
        pool.serve(LONG)
        pool.serve([9] * 4)
        placed(pool, LONG)
        assert pool.evict(1) == [2]

    def test_the_node_grows(self, pool: Pool) -> None:
        handle = pool.start(LONG[:4])
        bookmark = placed(pool, LONG[:4])
        pool.compute(handle, LONG[4:])
        assert bookmark.node is handle
        assert_marks(pool, bookmark, LONG[:4])

    @pytest.mark.parametrize("num_tokens", [4, 8])
    def test_a_split(self, pool: Pool, num_tokens: int) -> None:
        """Of a node with two bookmarks, at the end of the one or between them, and at 6."""
        pool.serve(LONG[:4])
        short = placed(pool, LONG[:4])
        pool.serve(LONG[:8])
        pool.serve(LONG)
        longer = placed(pool, LONG)
        pool.admit(LONG, num_blocks=num_tokens // 4)
        pool.serve(FORK)
        assert_marks(pool, short, LONG[:4])
        assert_marks(pool, longer, LONG)

    def test_a_merge(self, pool: Pool) -> None:
        pool.serve(LONG)
        pool.serve(FORK)
        bookmark = placed(pool, LONG[:6])
        upper = bookmark.node
        handle = pool.admit(LONG)
        assert pool.evict(1) == [3]
        assert_marks(pool, bookmark, LONG[:6])
        assert bookmark.node is handle is not upper

    def test_a_longer_tail_takes_the_place_of_its_tail(self, pool: Pool) -> None:
        pool.serve(LONG[:5])
        bookmark = placed(pool, LONG[:5], survives_cut=False)
        pool.serve(LONG[:7])
        assert_marks(pool, bookmark, LONG[:5])

    @pytest.mark.parametrize("start", [0, 4])
    def test_a_full_block_takes_the_place_of_its_tail(self, pool: Pool, start: int) -> None:
        """Whether its node has to be split for that or not."""
        pool.serve(LONG[:4])
        pool.serve(LONG[:6])
        bookmark = placed(pool, LONG[:6], survives_cut=False)
        pool.compute(pool.admit(LONG[:start]), LONG[start:])
        assert_marks(pool, bookmark, LONG[:6])

    def test_a_tail_in_use_gives_way(self, pool: Pool) -> None:
        handle = pool.start(LONG[:6])
        bookmark = placed(pool, LONG[:6], survives_cut=False)
        pool.serve(LONG)
        assert_marks(pool, bookmark, LONG[:6])
        pool.finish(handle)
        assert_marks(pool, bookmark, LONG[:6])

    def test_a_tail_gives_way_out_of_sight(self, pool: Pool) -> None:
        """Below a handle whose beginning is not found any more, nothing can be marked."""
        handle = pool.start(LONG[:4])
        pool.serve(LONG[:6])
        bookmark = placed(pool, LONG[:6])
        pool.tree.detach(0)
        pool.compute(handle, LONG[4:])
        assert_gone(pool, bookmark)


class TestCuts:
    def test_the_end_of_a_leaf_is_evicted(self, pool: Pool) -> None:
        pool.serve(LONG)
        pin, claim = placed(pool, LONG), placed(pool, LONG, survives_cut=False)
        assert pool.evict(2) == [2, 1]
        assert_marks(pool, pin, LONG[:4])
        assert claim.node is None

    def test_what_goes_on_beyond_it_is_evicted(self, pool: Pool) -> None:
        pool.serve(LONG[:4])
        bookmark = placed(pool, LONG[:4], survives_cut=False)
        pool.serve(LONG)
        assert pool.evict(2) == [2, 1]
        assert_marks(pool, bookmark, LONG[:4])

    def test_all_of_a_leaf_is_evicted(self, pool: Pool) -> None:
        pool.serve(LONG)
        pool.serve(FORK)
        pin, claim = placed(pool, LONG), placed(pool, LONG, survives_cut=False)
        pool.tree.acquire(pool.match(FORK), 2)
        assert pool.evict(2) == [2, 1]
        assert_marks(pool, pin, LONG[:6])
        assert claim.node is None

    def test_the_last_copy_of_where_they_part_is_evicted(self, pool: Pool) -> None:
        pool.serve(LONG)
        pool.serve(FORK)
        at_end, at_fork = placed(pool, LONG), placed(pool, LONG[:6])
        assert pool.evict(3) == [2, 1, 3]
        for bookmark in (at_end, at_fork):
            assert_marks(pool, bookmark, LONG[:4])

    def test_everything_is_evicted(self, pool: Pool) -> None:
        pool.serve(LONG)
        pool.serve(FORK)
        bookmarks = [placed(pool, tokens) for tokens in (LONG, FORK, LONG[:6])]
        assert len(pool.evict(4)) == 4
        assert list(pool.tree) == []
        assert_gone(pool, *bookmarks)

    def test_wrong_kv(self, pool: Pool) -> None:
        pool.serve(LONG)
        pin, claim = placed(pool, LONG), placed(pool, LONG, survives_cut=False)
        pool.tree.detach(1)
        assert_marks(pool, pin, LONG[:4])
        assert claim.node is None

    def test_wrong_kv_in_use(self, pool: Pool) -> None:
        handles = [pool.start(LONG), pool.start(FORK)]
        pins = [placed(pool, LONG), placed(pool, FORK)]
        pool.tree.detach(0)
        assert_gone(pool, *pins)
        for handle in handles:
            pool.finish(handle)

    def test_the_copy_of_where_they_part_was_wrong(self, pool: Pool) -> None:
        """Nobody else has tokens 5 and 6, and both requests still run."""
        pool.start(LONG)
        pool.start(FORK)
        bookmarks = [placed(pool, tokens) for tokens in (LONG, FORK, LONG[:6])]
        pool.tree.detach(1)
        assert_marks(pool, bookmarks[0], LONG[:6])
        pool.tree.detach(3)
        for bookmark in bookmarks:
            assert_marks(pool, bookmark, LONG[:4])

    def test_it_does_not_come_back(self, pool: Pool) -> None:
        pool.serve(LONG)
        bookmark = placed(pool, LONG)
        pool.evict(1)
        pool.serve(LONG)
        assert_marks(pool, bookmark, LONG[:8])

    def test_clear(self, pool: Pool) -> None:
        pool.serve(LONG)
        pool.serve(FORK)
        bookmarks = [placed(pool, tokens) for tokens in (LONG, FORK, LONG[:6])]
        pool.tree.clear()
        assert_gone(pool, *bookmarks)


@pytest.mark.parametrize("survives_cut", [True, False])
def test_of_what_was_evicted_nothing_is_kept(pool: Pool, survives_cut: bool) -> None:
    bookmarks: list[weakref.ref[Marked]] = []
    nodes: set[Node] = set()
    for number in range(200):
        tokens = [*LONG[:6], *[100 + number] * 6]
        pool.serve(tokens)
        bookmark = Marked(survives_cut=survives_cut)
        pool.tree.place(bookmark, pool.match(tokens).node)
        bookmarks.append(weakref.ref(bookmark))
        del bookmark
        pool.evict(max(0, 8 - len(pool.free)))
    pool.evict(64)
    nodes.update(pool.tree.all_nodes())
    gc.collect()
    assert nodes == set()
    assert [ref for ref in bookmarks if ref() is not None] == []


class Marked(Bookmark):
    """One whose end can be seen."""

    __slots__ = ("__weakref__",)


class TestCheck:
    def test_a_bookmark_that_points_elsewhere(self, pool: Pool) -> None:
        pool.serve(LONG)
        placed(pool, LONG).node = None
        with pytest.raises(AssertionError, match="is lost"):
            pool.tree.check()

    @pytest.mark.parametrize("num_tokens", [0, 13])
    def test_a_bookmark_outside_its_node(self, pool: Pool, num_tokens: int) -> None:
        pool.serve(LONG)
        placed(pool, LONG).num_tokens = num_tokens
        with pytest.raises(AssertionError):
            pool.tree.check()

    def test_an_empty_dict(self, pool: Pool) -> None:
        pool.serve(LONG)
        pool.match(LONG).node.bookmarks = {}
        with pytest.raises(AssertionError):
            pool.tree.check()
