# SPDX-License-Identifier: Apache-2.0
"""The tree against the plain model of :mod:`.reference`, through every operation."""

import pickle

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from vllm_radix.tree import (
    Bookmark,
    Extension,
    Key,
    Match,
    Namespace,
    Node,
    RadixTree,
    make_policy,
    pack_tokens,
)

from .reference import Cached, Reference, Tokens

NAMESPACES = [Namespace(), Namespace(salt=""), Namespace(adapter="")]
NUM_BLOCKS = 16

TOKENS = [0, 1, -1]
LONGEST_RUN = 10


def spell(number: int) -> Tokens:
    """Up to three runs of a token each, from one number, which is much cheaper to draw.

    Two token ids and a label, in runs: prompts are long and yet have beginnings in common, and
    they part inside blocks.
    """
    tokens: Tokens = ()
    while number:
        number, run = divmod(number, len(TOKENS) * LONGEST_RUN + 1)
        token, length = divmod(run - 1, LONGEST_RUN)
        tokens += (TOKENS[token],) * (length + 1) if run else ()
    return tokens


namespace = st.sampled_from(NAMESPACES)
priority = st.integers(0, 2)
pick = st.integers(0, NUM_BLOCKS)
length = st.integers(0, 24)
text = st.integers(0, 31**3 - 1).map(spell)


class TreeMachine(RuleBasedStateMachine):
    """A pool of blocks that is always nearly full, and requests that come and go.

    Every rule works on the tree and on the model, and the two must give the same answer.
    """

    block_size: int
    policy = "lru"

    @initialize()
    def start(self) -> None:
        self.tree = RadixTree(self.block_size, NUM_BLOCKS, make_policy(self.policy))
        self.model = Reference(self.block_size, self.policy)
        self.free = list(range(NUM_BLOCKS))
        self.nodes: dict[int, Node] = {}
        """The tree's handle for each handle of the model."""
        self.priorities: dict[int, int] = {}
        self.private: dict[int, list[int]] = {}
        """Blocks that a handle offered and the tree did not take."""
        self.holds: set[int] = set()
        """Those handles that are holds."""
        self.marked: dict[Bookmark, tuple[Namespace, Tokens]] = {}
        """What each bookmark that is not gone has to mark the end of."""
        self.seen: list[Tokens] = [()]
        self.remembered: tuple[Match, Namespace, Tokens, int] | None = None

    # ------------------------------------------------------------------ drawing

    def prompt(self, near: int, keep: int, rest: Tokens) -> Tokens:
        """Something that begins as an earlier prompt does."""
        return self.seen[near % len(self.seen)][:keep] + rest

    def sequel(self, handle: int, near: int, keep: int, rest: Tokens) -> Tokens:
        """Something to follow a handle, which begins as an earlier sequel to the same did."""
        so_far = self.model.handles[handle].prefix()
        sequels = [s[len(so_far) :] for s in self.seen if s[: len(so_far)] == so_far]
        return (sequels[near % len(sequels)] if sequels else ())[:keep] + rest

    def growing(self) -> list[int]:
        """The handles of requests whose path ends with a full block."""
        size = self.block_size
        return [h for h, n in self.nodes.items() if n.end % size == 0 and h not in self.holds]

    def cached_block(self, near: int) -> int:
        return sorted(self.model.cached)[near % len(self.model.cached)]

    def take(self, num_blocks: int) -> list[int] | None:
        """Free blocks, with room made for them if need be."""
        if num_blocks > len(self.free):
            self.make_room(num_blocks - len(self.free))
        if num_blocks > len(self.free):
            return None
        taken, self.free = self.free[:num_blocks], self.free[num_blocks:]
        return taken

    def give_back(self, blocks: list[int]) -> None:
        assert not set(blocks) & set(self.free)
        assert len(set(blocks)) == len(blocks)
        self.free += blocks

    # ------------------------------------------------------------------ looking

    @rule(
        namespace=namespace,
        near=pick,
        keep=length,
        rest=text,
        limit=st.none() | length,
    )
    def probe(
        self, namespace: Namespace, near: int, keep: int, rest: Tokens, limit: int | None
    ) -> None:
        tokens = self.prompt(near, keep, rest)
        before = pickle.dumps(self.tree)
        match = self.tree.match(Key.of(tokens, namespace), limit)
        assert match.num_tokens == self.model.match(namespace, tokens, limit)
        # Looking is not using: no age, no count, nothing at all has changed.
        assert pickle.dumps(self.tree) == before

    @precondition(lambda self: self.remembered)
    @rule(limit=st.none() | length)
    def probe_again(self, limit: int | None) -> None:
        """What is remembered of a match is enough to tell whether it still is the longest."""
        assert self.remembered is not None
        match, namespace, tokens, _ = self.remembered
        key = Key.of(tokens, namespace)
        before = pickle.dumps(self.tree)
        now = self.tree.match(key, limit)
        if limit is None or match.num_tokens <= limit:
            again = self.tree.match_again(match, key, limit)
            assert again == now
            assert not self.tree.is_void(again)
            if self.tree.is_longest(match, key, limit):
                assert (match.node, match.num_tokens) == (now.node, now.num_tokens)
        assert pickle.dumps(self.tree) == before

    @rule(
        namespace=namespace,
        prompts=st.lists(st.tuples(pick, length, text), max_size=3),
        num_blocks=st.integers(0, 6),
    )
    def want(
        self, namespace: Namespace, prompts: list[tuple[int, int, Tokens]], num_blocks: int
    ) -> None:
        """What is wanted is counted, and goes last; of the rest the order does not change."""
        matches, covered = [], []
        wanted: set[int] = set()
        evictable = {part.block for part in self.model.evictable()}
        for near, keep, rest in prompts:
            tokens = self.prompt(near, keep, rest)
            match = self.tree.match(Key.of(tokens, namespace))
            matches.append(match)
            num_wanted = -(-match.num_tokens // self.block_size)
            path = self.tree.path_blocks(match.node, num_wanted)
            wanted |= evictable & set(path)
            covered.append(len(wanted))
        unwanted = [block for block in self.model.eviction_order() if block not in wanted]
        assert self.tree.want(matches) == covered
        order = list(self.tree.eviction_order())
        assert order[: len(unwanted)] == unwanted
        assert set(order[len(unwanted) :]) == wanted
        self.tree.check()
        # A block may come to be wanted while others go: the last copy of where a match ends.
        freed = self.tree.evict(num_blocks)
        assert len(freed) == min(num_blocks, len(order))
        assert sorted(self.model.lose(freed)) == sorted(freed)
        self.give_back(freed)
        self.cut_what_is_lost()
        assert set(self.tree.eviction_order()) == set(order) - set(freed)
        self.tree.want(())

    # ------------------------------------------------------------------ marking

    @precondition(lambda self: self.model.cached and len(self.marked) < 8)
    @rule(near=pick, num_above=st.integers(0, 2), survives_cut=st.booleans())
    def place(self, near: int, num_above: int, survives_cut: bool) -> None:
        """At the end of a node, or of one above, which may end inside a block."""
        bookmark = Bookmark(survives_cut=survives_cut)
        block = self.cached_block(near)
        node = self.tree.owner(block)
        assert node is not None
        if node.detached:
            with pytest.raises(ValueError, match="is the end of no cached prefix"):
                self.tree.place(bookmark, node)
            return
        for _ in range(num_above):
            assert node.parent is not None
            node = node.parent if node.parent.parent is not None else node
        self.tree.place(bookmark, node)
        namespace = self.namespace_of(self.model.cached[block])
        self.marked[bookmark] = namespace, tokens_until(node)

    @precondition(lambda self: self.marked)
    @rule(near=pick)
    def remove(self, near: int) -> None:
        bookmark = self.some_bookmark(near)
        self.tree.remove(bookmark)
        assert bookmark.node is None
        del self.marked[bookmark]

    @precondition(lambda self: self.marked)
    @rule(near=pick, everybody_left=st.booleans())
    def expire(self, near: int, everybody_left: bool) -> None:
        if everybody_left:
            self.release_all()
            if not self.marked:
                return
        bookmark = self.some_bookmark(near)
        node, end = bookmark.node, bookmark.num_tokens
        assert node is not None
        num_blocks = end // self.block_size - node.start // self.block_size
        if not (num_blocks or (node.blocks and node.end == end)):
            return  # The model knows no age of tokens whose block is their children's.
        namespace, tokens = self.marked[bookmark]
        shorter = [
            len(others)
            for there, others in self.marked.values()
            if there == namespace and others == tokens[: len(others)] != tokens
        ]
        self.tree.expire(bookmark)
        self.model.expire(namespace, tokens, max(shorter, default=0))

    def some_bookmark(self, near: int) -> Bookmark:
        return list(self.marked)[near % len(self.marked)]

    def cut_what_is_lost(self) -> None:
        """After whatever may have lost something, before it is computed again."""
        for bookmark, (namespace, tokens) in list(self.marked.items()):
            length = self.model.match(namespace, tokens)
            if length == len(tokens):
                continue
            if length and bookmark.survives_cut:
                self.marked[bookmark] = namespace, tokens[:length]
            else:
                assert bookmark.node is None
                del self.marked[bookmark]

    # ------------------------------------------------------------------ using

    @rule(
        namespace=namespace,
        near=pick,
        keep=length,
        rest=text,
        limit=st.none() | length,
        fewer=st.integers(0, 2),
        priority=priority,
    )
    def acquire(
        self,
        namespace: Namespace,
        near: int,
        keep: int,
        rest: Tokens,
        limit: int | None,
        fewer: int,
        priority: int,
    ) -> None:
        self.admit(namespace, self.prompt(near, keep, rest)[:limit], priority, fewer)

    @rule(
        namespace=namespace,
        near=pick,
        keep=length,
        rest=text,
        priority=priority,
        stays=st.booleans(),
        mark=st.none() | st.booleans(),
    )
    def serve(
        self,
        namespace: Namespace,
        near: int,
        keep: int,
        rest: Tokens,
        priority: int,
        stays: bool,
        mark: bool | None,
    ) -> None:
        """All that a request does, as one step: there is no other way to many requests.

        ``mark`` places a bookmark where it ends, which survives a cut or not.
        """
        tokens = self.prompt(near, keep, rest)[: 6 * self.block_size]
        handle = self.admit(namespace, tokens, priority)
        tokens = tokens[self.nodes[handle].end :]
        end = len(tokens) - len(tokens) % self.block_size
        self.grow(handle, tokens[:end])
        if self.block_size > 1 and self.nodes[handle].end % self.block_size == 0:
            self.grow_tail(handle, tokens[end:])
        node = self.nodes[handle]
        if mark is not None and node.end and not node.detached and len(self.marked) < 8:
            bookmark = Bookmark(survives_cut=mark)
            self.tree.place(bookmark, node)
            self.marked[bookmark] = namespace, self.model.handles[handle].prefix()
        if not stays:
            self.let_go(handle)

    @precondition(lambda self: self.growing())
    @rule(near=pick, like=pick, keep=length, rest=text)
    def extend(self, near: int, like: int, keep: int, rest: Tokens) -> None:
        handle = self.growing()[near % len(self.growing())]
        tokens = self.sequel(handle, like, keep, rest)[: 6 * self.block_size]
        tokens += tokens[-1:] * (-len(tokens) % self.block_size)
        self.grow(handle, tokens)

    @precondition(lambda self: self.block_size > 1 and self.growing())
    @rule(near=pick, like=pick, keep=length, rest=text)
    def add_tail(self, near: int, like: int, keep: int, rest: Tokens) -> None:
        handle = self.growing()[near % len(self.growing())]
        tokens = self.sequel(handle, like, keep, rest)[: self.block_size - 1]
        self.grow_tail(handle, tokens)

    @precondition(lambda self: self.model.cached)
    @rule(near=pick)
    def hold(self, near: int) -> None:
        block = self.cached_block(near)
        handle = self.model.hold(block)
        self.enrol(handle, self.tree.hold(block))
        self.holds.add(handle)

    @rule(namespace=namespace, near=pick, keep=length, rest=text)
    def remember(self, namespace: Namespace, near: int, keep: int, rest: Tokens) -> None:
        tokens = self.prompt(near, keep, rest)
        match = self.tree.match(Key.of(tokens, namespace))
        self.remembered = match, namespace, tokens, self.model.num_departures

    @precondition(lambda self: self.remembered)
    @rule()
    def acquire_remembered(self) -> None:
        assert self.remembered is not None
        match, namespace, tokens, num_departures = self.remembered
        self.remembered = None
        num_blocks = match.num_tokens // self.block_size
        void = num_blocks > 0 and self.model.num_departures > num_departures
        before = pickle.dumps(self.tree)
        try:
            node = self.lock(match, namespace, num_blocks, 0)
        except ValueError as error:
            # It may be refused for less than a departure, but then nothing has happened.
            assert "look up again" in str(error)
            assert pickle.dumps(self.tree) == before
        else:
            assert not void
            self.enrol(self.model.acquire(namespace, tokens, num_blocks), node)

    def admit(self, namespace: Namespace, tokens: Tokens, priority: int, fewer: int = 0) -> int:
        match = self.tree.match(Key.of(tokens, namespace))
        assert match.num_tokens == self.model.match(namespace, tokens)
        self.check_sources(match, tokens)
        num_blocks = max(0, match.num_tokens // self.block_size - fewer)
        path = self.model.path(namespace, tokens, num_blocks)
        locked = self.model.locked()
        assert self.tree.path_blocks(match.node, num_blocks) == [part.block for part in path]
        assert self.tree.num_protected_blocks(match.node, num_blocks) == sum(
            part in locked for part in path
        )
        node = self.lock(match, namespace, num_blocks, priority)
        handle = self.model.acquire(namespace, tokens, num_blocks, priority)
        self.enrol(handle, node, priority)
        return handle

    def check_sources(self, match: Match, tokens: Tokens) -> None:
        """Wherever a request goes on, some block must hold what the match has of that block."""
        for start in range(0, match.num_tokens, self.block_size):
            source = self.tree.block_after(match, start // self.block_size)
            assert source is not None
            part = self.model.cached[source]
            end = min(start + self.block_size, match.num_tokens)
            assert part.prefix()[:end] == tokens[:end]
            assert len(part.path()) == start // self.block_size + 1

    def lock(self, match: Match, namespace: Namespace, num_blocks: int, priority: int) -> Node:
        if num_blocks == 0:
            return self.tree.enter(namespace)
        return self.tree.acquire(match, num_blocks, priority)

    def enrol(self, handle: int, node: Node, priority: int = 0) -> None:
        self.nodes[handle] = node
        self.priorities[handle] = priority
        self.private[handle] = []

    def grow(self, handle: int, tokens: Tokens) -> None:
        blocks = self.take(len(tokens) // self.block_size)
        if blocks:
            priority = self.priorities[handle]
            extension = self.tree.extend(self.nodes[handle], pack_tokens(tokens), blocks, priority)
            answer = self.model.extend(handle, tokens, blocks, priority)
            self.compare(handle, blocks, extension, answer)

    def grow_tail(self, handle: int, tokens: Tokens) -> None:
        blocks = self.take(1) if tokens else None
        if blocks:
            node, (block,), priority = self.nodes[handle], blocks, self.priorities[handle]
            extension = self.tree.add_tail(node, pack_tokens(tokens), block, priority)
            answer = self.model.add_tail(handle, tokens, block, priority)
            self.compare(handle, blocks, extension, answer)

    def compare(
        self, handle: int, blocks: list[int], extension: Extension, answer: tuple[int, list[int]]
    ) -> None:
        num_duplicates, freed = answer
        assert extension.num_duplicates == num_duplicates
        assert sorted(extension.replaced + extension.freed) == sorted(freed)
        self.nodes[handle] = extension.node
        self.private[handle] += blocks[:num_duplicates]
        self.give_back(extension.replaced + extension.freed)
        self.cut_what_is_lost()
        self.seen.append(self.model.handles[handle].prefix())

    @precondition(lambda self: self.nodes)
    @rule(near=pick)
    def release(self, near: int) -> None:
        self.let_go(sorted(self.nodes)[near % len(self.nodes)])

    @rule()
    def release_all(self) -> None:
        for handle in sorted(self.nodes):
            self.let_go(handle)

    def let_go(self, handle: int) -> None:
        used = handle not in self.holds
        freed = self.tree.release(self.nodes.pop(handle), used=used)
        assert sorted(freed) == sorted(self.model.release(handle, used))
        self.give_back(freed)
        self.cut_what_is_lost()
        self.give_back(self.private.pop(handle))
        self.holds.discard(handle)

    def namespace_of(self, part: Cached) -> Namespace:
        beginning = part
        while beginning.before is not None:
            beginning = beginning.before
        return next(n for n, other in self.model.beginnings.items() if other is beginning)

    # ------------------------------------------------------------------ making room

    @rule(num_blocks=st.integers(0, 6))
    def evict(self, num_blocks: int) -> None:
        self.make_room(num_blocks)

    def make_room(self, num_blocks: int) -> None:
        freed = self.tree.evict(num_blocks)
        assert freed == self.model.evict(num_blocks)
        self.give_back(freed)
        self.cut_what_is_lost()

    @precondition(lambda self: self.model.cached)
    @rule(near=pick)
    def detach(self, near: int) -> None:
        block = self.cached_block(near)
        freed = self.tree.detach(block)
        assert sorted(freed) == sorted(self.model.detach(block))
        self.give_back(freed)
        self.cut_what_is_lost()

    @rule()
    def clear(self) -> None:
        if self.nodes:
            before = pickle.dumps(self.tree)
            with pytest.raises(ValueError, match="release every handle first"):
                self.tree.clear()
            assert pickle.dumps(self.tree) == before
            return
        freed = self.tree.clear()
        assert sorted(freed) == sorted(self.model.clear())
        self.give_back(freed)
        self.cut_what_is_lost()

    # ------------------------------------------------------------------ what always holds

    @invariant()
    def agree(self) -> None:
        self.tree.check()
        self.blocks_add_up()
        self.handles_stay_good()
        self.blocks_have_the_right_owners()
        self.what_is_cached_is_found()
        self.bookmarks_are_where_they_belong()
        assert list(self.tree.eviction_order()) == self.model.eviction_order()

    def blocks_add_up(self) -> None:
        tree, model = self.tree, self.model
        assert tree.num_cached_blocks == len(model.cached)
        assert tree.num_evictable_blocks == len(model.evictable())
        private = [block for blocks in self.private.values() for block in blocks]
        everything = self.free + private + list(model.cached)
        assert sorted(everything) == list(range(NUM_BLOCKS))
        used = len(private) + len(model.locked())
        assert used + len(self.free) + tree.num_evictable_blocks == NUM_BLOCKS

    def handles_stay_good(self) -> None:
        for handle, node in self.nodes.items():
            last = self.model.handles[handle]
            assert node.end == len(last.prefix())
            path = [part.block for part in last.path()]
            assert self.tree.path_blocks(node, len(path)) == path
            assert self.tree.num_protected_blocks(node, len(path)) == len(path)

    def blocks_have_the_right_owners(self) -> None:
        for block in range(NUM_BLOCKS):
            node, part = self.tree.owner(block), self.model.cached.get(block)
            assert (node is None) == (part is None)
            if node is not None and part is not None:
                assert node.start < len(part.prefix()) <= node.end
                assert node.detached != part.can_be_found()

    def what_is_cached_is_found(self) -> None:
        for part in self.model.findable():
            key = Key.of(part.prefix(), self.namespace_of(part))
            match = self.tree.match(key)
            assert match.num_tokens == len(key)
            path = [other.block for other in part.path()]
            assert self.tree.path_blocks(match.node, len(path)) == path

    def bookmarks_are_where_they_belong(self) -> None:
        for bookmark, (namespace, tokens) in self.marked.items():
            match = self.tree.match(Key.of(tokens, namespace))
            assert bookmark.num_tokens == match.num_tokens == len(tokens)
            assert bookmark.node is match.node
        placed = {bookmark for node in self.tree.all_nodes() for bookmark in node.bookmarks or ()}
        assert placed == set(self.marked)


def tokens_until(node: Node) -> Tokens:
    """The prefix that ends with a node."""
    above = tokens_until(node.parent) if node.parent is not None else ()
    return above + tuple(memoryview(node.edge).cast("i"))


@pytest.mark.parametrize(
    ("policy", "block_size", "num_examples"),
    [("lru", 1, 300), ("lru", 4, 700), ("lru", 16, 500)]
    + [(policy, 4, 200) for policy in ("lfu", "slru", "priority")],
)
def test_tree_agrees_with_the_model(policy: str, block_size: int, num_examples: int) -> None:
    machine = type("Machine", (TreeMachine,), {"block_size": block_size, "policy": policy})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=num_examples,
            stateful_step_count=50,
            derandomize=True,
            deadline=None,
            print_blob=True,
        ),
    )
