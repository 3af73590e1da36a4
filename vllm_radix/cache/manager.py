# SPDX-License-Identifier: Apache-2.0
"""vLLM's KV cache manager on the radix tree, for models with one full-attention group.

Who does what, as in vLLM: the *manager* is what the scheduler talks to, the *coordinator* (vLLM's
own) hands its calls to one *group manager*, and both use the *block pool*. We replace the lookup
(:meth:`RadixKVCacheManager.get_computed_blocks`) and the bookkeeping of a request's blocks
(:class:`RadixGroupManager`); vLLM's ``allocate_slots`` runs as it is.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any, NamedTuple

from vllm.multimodal.utils import get_mm_features_in_window
from vllm.utils.math_utils import cdiv
from vllm.v1.core import kv_cache_coordinator
from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry
from vllm.v1.request import Request

from vllm_radix import compat
from vllm_radix.cache.block_pool import BlockList, PoppedTable, RadixBlockPool
from vllm_radix.cache.request_key import RequestKeys
from vllm_radix.config import RadixConfig
from vllm_radix.tree import Key, Match, Node, RadixTree, make_policy


def why_unsupported(kv_cache_config: KVCacheConfig, **manager_args: Any) -> str | None:
    """Why vLLM's own manager has to serve this model, or None if ours can.

    Args:
        kv_cache_config: the model's KV cache groups.
        manager_args: the other arguments that vLLM passes to its manager.
    """
    if not manager_args.get("enable_caching", True):
        return "prefix caching is off"
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        return f"the model has {len(groups)} KV cache groups, not one"
    spec, role = groups[0].kv_cache_spec, groups[0].role
    if KVCacheSpecRegistry.get_manager_class(spec, role) is not FullAttentionManager:
        return f"the model's KV cache is a {type(spec).__name__}, not full attention"
    if not spec.prefix_cacheable:
        return "the model's KV cache can't be shared between requests"
    if manager_args.get("num_hash_lookahead_tokens", 0):
        return "the drafter's KV of a block depends on the tokens that follow it"
    return None


class RadixKVCacheBlocks(KVCacheBlocks):
    """``KVCacheBlocks`` that gives its ids without making an object for each block."""

    def get_block_ids(  # type: ignore[override]
        self, allow_none: bool = False, *, group_ids: Sequence[int] | None = None
    ) -> tuple[list[int], ...] | None:
        if group_ids is not None and list(group_ids) != [0]:
            return super().get_block_ids(allow_none, group_ids=group_ids)  # type: ignore[call-overload]
        (group,) = self.blocks
        if not isinstance(group, BlockList):
            return super().get_block_ids(allow_none)  # type: ignore[call-overload]
        if allow_none and not group.ids:
            return None
        # A copy: the model runner appends to the list that it is given.
        return (group.ids[:],)


class Source(NamedTuple):
    """A block to be copied for the tokens that follow the full blocks of a match."""

    block: int
    end: int
    """Up to which token of the request's prompt the copy holds what the request needs."""


class MatchedBlocks(BlockList):
    """The full blocks of a match, not locked yet.

    Attributes:
        match: what was found.
        request: who looked it up; None if the blocks came back from elsewhere.
        source: what to copy for the tokens after the full blocks; None if there are none.
    """

    __slots__ = ("match", "request", "source")

    def __init__(
        self,
        pool: RadixBlockPool,
        ids: list[int],
        match: Match,
        request: Request | None = None,
        source: Source | None = None,
    ) -> None:
        super().__init__(pool, ids)
        self.match = match
        self.request = request
        self.source = source


class BlockTable(BlockList):
    """The blocks of an admitted request.

    Attributes:
        handle: what the request has locked in the tree; None until it caches for the first time. It
            ends where the first ``num_cached`` blocks end.
        num_cached: how many blocks, from the first, the tree has, in these or in other copies.
        duplicates: those among them that the tree has in other copies, which others use. Block
            tables are append-only, so the request keeps its own until it ends.
        source: what the next new block has to become a copy of; None once it was ordered.
    """

    __slots__ = ("duplicates", "handle", "num_cached", "source")

    def __init__(self, pool: RadixBlockPool) -> None:
        super().__init__(pool, [])
        self.handle: Node | None = None
        self.num_cached = 0
        self.duplicates: list[int] = []
        self.source: Source | None = None


class RadixGroupManager(FullAttentionManager):
    """The block tables of one full-attention group."""

    block_pool: RadixBlockPool
    keys: RequestKeys
    """Set by :class:`RadixKVCacheManager`."""
    importance: Callable[[Request], int] = staticmethod(lambda request: 0)
    """The priority of what a request caches. Set by whoever knows."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # No default: an entry exists exactly while the request is admitted.
        self.req_to_blocks: dict[str, BlockTable] = {}  # type: ignore[assignment]
        # By the block that becomes one, the copies that the coming step starts with.
        self._copies: dict[int, Source] = {}

    @property
    def tree(self) -> RadixTree:
        return self.block_pool.tree

    def get_num_blocks_to_allocate(
        self,
        request_id: str,
        num_tokens: int,
        new_computed_blocks: Sequence[KVCacheBlock],
        *args: Any,
        **kwargs: Any,
    ) -> int:
        num_required = cdiv(num_tokens, self.block_size)
        table = self.req_to_blocks.get(request_id)
        if table is not None:
            return max(num_required - len(table.ids), 0)
        num_new = max(num_required - len(new_computed_blocks), 0)
        matched = self._as_matched(new_computed_blocks)
        return num_new if matched is None else num_new + self.num_to_lock(matched)

    def num_to_lock(self, matched: MatchedBlocks) -> int:
        """Blocks that count as free until a request acquires the match. O(path)."""
        num_matched = len(matched.ids)
        source = matched.source
        return (
            num_matched
            - self.tree.num_protected_blocks(matched.match.node, num_matched)
            + (source is not None and self.block_pool.ref_count(source.block) == 0)
        )

    def source_after(self, matched: MatchedBlocks) -> Source | None:
        """The block to copy for what a match has beyond its full blocks, or None."""
        block = self.tree.block_after(matched.match, len(matched.ids))
        if block is None:
            return None
        end = matched.match.num_tokens
        if block not in self.block_pool.fresh:
            return Source(block, end)
        # It is computed only after the copies. If it becomes one itself, so may others.
        copied = self._copies.get(block)
        return copied and Source(copied.block, min(copied.end, end))

    def add_local_computed_blocks(
        self,
        request_id: str,
        new_computed_blocks: Sequence[KVCacheBlock],
        *args: Any,
        **kwargs: Any,
    ) -> None:
        matched = self._as_matched(new_computed_blocks)
        table = BlockTable(self.block_pool)
        if matched is not None and matched.ids:
            match = matched.match
            if self.tree.is_void(match):
                # A connector held or let go of blocks since the lookup. The blocks are the same.
                match = self.tree.match_of_block(matched.ids[-1])
            priority = self.importance(matched.request) if matched.request is not None else 0
            table.handle = self.tree.acquire(match, len(matched.ids), priority)
            table.ids += matched.ids
        table.num_cached = self.num_cached_block[request_id] = len(table.ids)
        self.req_to_blocks[request_id] = table
        if matched is None:
            return
        if collector := self.block_pool.metrics_collector:
            for block in matched:
                collector.on_block_accessed(block)
        if matched.source is not None:
            # Held until the worker has run the copy (see `take_pending_cow_copies`).
            self.block_pool.touch([self.block_pool.view(matched.source.block)])
            table.source = matched.source

    def allocate_external_computed_blocks(
        self,
        request_id: str,
        num_local_computed_tokens: int,
        num_external_computed_tokens: int,
        record_for_zeroing: bool = True,
    ) -> None:
        num_tokens = num_local_computed_tokens + num_external_computed_tokens
        self._grow(self.req_to_blocks[request_id], num_tokens, record_for_zeroing)

    def allocate_new_blocks(self, request_id: str, num_tokens: int, *args: Any) -> BlockList:  # type: ignore[override]
        table = self.req_to_blocks.get(request_id)
        if table is None:
            table = self.req_to_blocks[request_id] = BlockTable(self.block_pool)
            self.num_cached_block[request_id] = 0
        return BlockList(self.block_pool, self._grow(table, num_tokens))

    def _grow(
        self, table: BlockTable, num_tokens: int, record_for_zeroing: bool = True
    ) -> list[int]:
        new = self.block_pool.allocate(cdiv(num_tokens, self.block_size) - len(table.ids))
        if new:
            if table.source is not None:
                copy = self.block_pool.view(new[0])
                self.block_pool.touch([copy])
                source = self.block_pool.view(table.source.block)
                self._pending_cow_copies.append((source, copy))
                self._copies[new[0]] = table.source
                table.source = None
            table.ids += new
            if self._record_new_block_ids and record_for_zeroing:
                self.new_block_ids += new
        return new

    def cache_blocks(self, request: Request, num_tokens: int, *args: Any, **kwargs: Any) -> None:
        """Give the tree the blocks that ``num_tokens`` tokens fill. O(new blocks + path)."""
        request_id = request.request_id
        table = self.req_to_blocks[request_id]
        if table.handle is None:
            # On admission, even if no block is full: what the request computes from here on is for
            # those who share its namespace now.
            table.handle = self.tree.enter(self.keys.namespace(request))
        num_full = num_tokens // self.block_size
        num_cached = table.num_cached
        if num_full <= num_cached:
            return
        extension = self.tree.extend(
            table.handle,
            self.keys.data(request, num_cached * self.block_size, num_full * self.block_size),
            table.ids[num_cached:num_full],
            self.importance(request),
        )
        first_given = num_cached + extension.num_duplicates
        first_new = first_given + len(extension.replaced)
        table.handle = extension.node
        table.duplicates += table.ids[num_cached:first_given]
        table.num_cached = self.num_cached_block[request_id] = num_full
        if extension.replaced:
            self.block_pool.replace(extension.replaced, table.ids[first_given:first_new])
        self.block_pool.give_to_tree(table.ids[first_new:num_full])
        self.block_pool.reclaim(extension.freed)
        num_hashed = min(num_full, len(request.block_hashes))
        if first_new < num_hashed and not table.handle.detached:
            self.block_pool.cache_full_blocks(
                request=request,
                blocks=table,  # type: ignore[arg-type]
                num_cached_blocks=first_new,
                num_full_blocks=num_hashed,
                block_size=self.block_size,
                kv_cache_group_id=self.kv_cache_group_id,
            )

    def cache_tail(self, request: Request, num_tokens: int, min_tokens: int) -> None:
        """Give the tree the block that the first ``num_tokens`` tokens fill in part.

        The request must not compute any more. Nothing to do for fewer than ``min_tokens`` tokens
        in the block.
        """
        table = self.req_to_blocks[request.request_id]
        # Whatever a worker reported, there is no KV without a block.
        num_tokens = min(num_tokens, len(table.ids) * self.block_size)
        self.cache_blocks(request, num_tokens)
        start = table.num_cached * self.block_size
        if num_tokens - start < min_tokens:
            return
        assert table.handle is not None
        block = table.ids[table.num_cached]
        extension = self.tree.add_tail(
            table.handle,
            self.keys.data(request, start, num_tokens),
            block,
            self.importance(request),
        )
        table.handle = extension.node
        self.block_pool.reclaim(extension.freed)
        if not extension.num_duplicates:
            table.num_cached += 1
            self.block_pool.give_to_tree([block])

    def take_back(self, request: Request, num_tokens: int) -> None:
        """Take the blocks that the request gave for more than ``num_tokens`` tokens from the tree.

        No match finds them any more. They are the request's own again, unless the block in which
        those tokens begin is the tree's for another reason: somebody else computed it, or uses it.
        """
        table = self.req_to_blocks[request.request_id]
        num_kept = num_tokens // self.block_size
        duplicates = set(table.duplicates)
        given = [b for b in table.ids[num_kept : table.num_cached] if b not in duplicates]
        if not given:
            return
        self.block_pool.evict_blocks({given[0]})
        owner = self.tree.owner(given[0])
        if given[0] != table.ids[num_kept] or owner is None or owner.lock_count > 1:
            return
        assert table.handle is not None
        if num_kept:
            kept = self.tree.hold(self.tree.path_blocks(table.handle, num_kept)[-1])
        else:
            kept = self.tree.enter(self.keys.namespace(request))
        freed = self.tree.release(table.handle)
        own = set(given).intersection(freed)
        self.block_pool.take_from_tree(own)
        self.block_pool.reclaim([block for block in freed if block not in own])
        table.handle = kept
        table.num_cached = self.num_cached_block[request.request_id] = num_kept
        table.duplicates = [block for block in table.ids[:num_kept] if block in duplicates]

    def free(self, request_id: str) -> None:
        """Unlock the request's path and free its private blocks. O(path + private blocks)."""
        table = self._pop(request_id)
        if table is not None:
            self._release(table)

    def pop_blocks_for_free(self, request_id: str) -> Sequence[KVCacheBlock]:  # type: ignore[override]
        table = self._pop(request_id)
        if table is None:
            return []
        return PoppedTable(self.block_pool, table.ids, lambda: self._release(table))

    def new_step_starts(self) -> None:
        self.block_pool.start_step()
        self._copies.clear()

    def _pop(self, request_id: str) -> BlockTable | None:
        self.num_cached_block.pop(request_id, None)
        return self.req_to_blocks.pop(request_id, None)

    def _release(self, table: BlockTable) -> None:
        pool = self.block_pool
        # The last blocks come first, as they are the first that the pool should reuse.
        if table.num_cached < len(table.ids):
            pool.free_private(reversed(table.ids[table.num_cached :]))
        if table.duplicates:
            pool.free_private(reversed(table.duplicates))
        if table.source is not None:
            pool.free_blocks([pool.view(table.source.block)])
        if table.handle is not None:
            pool.reclaim(self.tree.release(table.handle))

    def _as_matched(self, blocks: Sequence[KVCacheBlock]) -> MatchedBlocks | None:
        """The match that a lookup result stands for, also where a caller made a list of it."""
        if isinstance(blocks, MatchedBlocks):
            return blocks
        if not blocks:
            return None
        ids = [block.block_id for block in blocks]
        return MatchedBlocks(self.block_pool, ids, self.tree.match_of_block(ids[-1]))


_priority = attrgetter("priority")

# All that vLLM passes, beyond the number of new tokens, for a request that is running.
_ARGUMENTS_WHILE_RUNNING = {"num_lookahead_tokens"}


class RadixKVCacheManager(KVCacheManager):
    """vLLM's ``KVCacheManager`` with the lookup by tree.

    Constructing it for a model that it can't serve gives vLLM's own (see :func:`why_unsupported`).

    Args:
        kv_cache_config, args, kwargs: what vLLM passes to its own.
        radix_config: our options.
    """

    def __new__(  # type: ignore[misc]
        cls,
        kv_cache_config: KVCacheConfig,
        *args: Any,
        radix_config: RadixConfig | None = None,
        **kwargs: Any,
    ) -> KVCacheManager:
        if why_unsupported(kv_cache_config, **kwargs) is not None:
            return KVCacheManager(kv_cache_config, *args, **kwargs)
        return super().__new__(cls)

    def __init__(self, *args: Any, radix_config: RadixConfig | None = None, **kwargs: Any) -> None:
        config = radix_config or RadixConfig()
        with _our_parts(config):
            super().__init__(*args, **kwargs)
        (group_manager,) = self.coordinator.single_type_managers
        assert isinstance(group_manager, RadixGroupManager)
        self._group = group_manager
        self._pool = group_manager.block_pool
        self._tree = group_manager.tree
        self._keys = RequestKeys(group_manager.block_size, self._tree)
        # What was found for requests that wait, to be looked up again only where the tree changed.
        self._matches: dict[str, tuple[Key, int, Match]] = {}
        group_manager.keys = self._keys
        if config.eviction == "priority":
            group_manager.importance = _priority
        self._check_every_step = config.debug_checks
        self._token_granular = config.token_granular and not group_manager.use_eagle
        self._min_partial_tokens = config.min_partial_tokens

    def get_computed_blocks(
        self, request: Request, max_cache_hit_length: int | None = None
    ) -> tuple[KVCacheBlocks, int, int]:
        """The longest cached prefix of a request, in whole blocks; see vLLM's docstring.

        A probe: locks nothing and changes no age, since vLLM may look up many times before it
        admits a request.
        """
        match = self.probe(request)
        if match is None:
            return self.empty_kv_cache_blocks, 0, 0
        if max_cache_hit_length is not None:
            match = self._tree.match(self._keys.key(request), max_cache_hit_length)
        num_blocks = self.num_reused(match) // self._group.block_size
        while True:
            ids = self._tree.path_blocks(match.node, num_blocks)
            matched = MatchedBlocks(self._pool, ids, match, request)
            num_tokens = self._choose_source(matched)
            starts = _starts_of_items_around(request, num_tokens)
            if len(starts) < 2:
                break
            # Inside one item vLLM goes on at a new block as at a new chunk of a prompt. Where items
            # lie over one another, as a video and its sound do, it may take the outputs of their
            # encoders for one another.
            num_blocks = max(starts) // self._group.block_size
        if not num_tokens:
            return self.empty_kv_cache_blocks, 0, 0
        blocks = RadixKVCacheBlocks((matched,))
        if (
            self.enable_kv_cache_events
            and getattr(request, "kv_cache_report_mode", "incremental") == "full"
        ):
            self.coordinator.emit_cached_block_events(request, blocks.blocks)  # type: ignore[arg-type]
        return blocks, num_tokens, 0

    def probe(self, request: Request) -> Match | None:
        """The longest cached prefix of a request that waits, at most all but its last token.

        None for a request that must not read the cache. Looking up is not using: nothing is locked,
        counted, published or refreshed. O(1) if nothing changed where the last probe ended.
        """
        known = self._matches.get(request.request_id)
        if known is None:
            if not self.prefix_cache_lookup_enabled(request):
                return None
            key = self._keys.key(request)
            # The last token is always computed, since its logits are needed.
            limit = len(key) - 1
            match = self._tree.match(key, limit)
        else:
            key, limit, before = known
            match = self._tree.match_again(before, key, limit)
            if match is before:
                return match
        self._matches[request.request_id] = (key, limit, match)
        return match

    def num_reused(self, match: Match) -> int:
        """How many tokens of a match are reused at most: whole blocks alone, for some models. O(1).

        Fewer if it ends inside an item, or if the pool has no block for a copy.
        """
        if self._token_granular:
            return match.num_tokens
        num_blocks = match.num_tokens // self._group.block_size
        if self._group.use_eagle and num_blocks:
            # The drafter needs the hidden states of the last block: compute it again.
            num_blocks -= 1
        return num_blocks * self._group.block_size

    def next_token(self, request: Request, match: Match) -> tuple[int, int] | None:
        """Where a match ends and which token or label comes there; None if that is the last. O(1).

        Requests whose matches end at one node have more cached together, if these are equal.
        """
        key = self._keys.key(request)
        at = match.num_tokens
        return (at, key.tokens[at]) if at < len(key) - 1 else None

    def _choose_source(self, matched: MatchedBlocks) -> int:
        """Choose the block to copy for what follows the full blocks; return the hit's tokens."""
        block_size = self._group.block_size
        num_blocks = len(matched.ids)
        num_full = num_blocks * block_size
        request = matched.request
        if not self._token_granular or request is None:
            return num_full
        source = self._group.source_after(matched)
        if source is None:
            return num_full
        num_tokens = min(source.end, num_full + block_size)
        # Not every model can go on at any token inside an item.
        while num_tokens > num_full and (starts := _starts_of_items_around(request, num_tokens)):
            num_tokens = max(*starts, num_full)
        if num_tokens - num_full < self._min_partial_tokens:
            return num_full
        matched.source = source._replace(end=num_tokens)
        # The copy needs its source to stay. Where that leaves too little room for the request,
        # it would wait for blocks that it holds itself.
        num_needed = cdiv(request.num_tokens, block_size) + 1 - num_blocks
        if num_needed + self._group.num_to_lock(matched) > self._pool.get_num_free_blocks():
            matched.source = None
            return num_full
        return num_tokens

    def allocate_slots(
        self, request: Request, num_new_tokens: int, *args: Any, **kwargs: Any
    ) -> KVCacheBlocks | None:
        """Slots for a request's next tokens; see vLLM's docstring.

        In most steps a decoding request neither needs a block nor fills one: nothing to do then.
        """
        table = self._group.req_to_blocks.get(request.request_id)
        if (
            table is not None
            and num_new_tokens
            and not args
            and kwargs.keys() <= _ARGUMENTS_WHILE_RUNNING
        ):
            num_tokens = request.num_computed_tokens + num_new_tokens
            block_size = self._group.block_size
            if (
                num_tokens < (table.num_cached + 1) * block_size
                and num_tokens + kwargs.get("num_lookahead_tokens", 0)
                <= len(table.ids) * block_size
            ):
                return self.empty_kv_cache_blocks
        blocks = super().allocate_slots(request, num_new_tokens, *args, **kwargs)
        if table is None and blocks is not None:
            # It waits no more.
            self._matches.pop(request.request_id, None)
        return blocks

    def create_kv_cache_blocks(self, blocks: tuple[Sequence[KVCacheBlock], ...]) -> KVCacheBlocks:
        return RadixKVCacheBlocks(blocks) if any(blocks) else self.empty_kv_cache_blocks

    @property
    def tree(self) -> RadixTree:
        """The prefix cache."""
        return self._tree

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        return self._group.block_size

    def set_importance(self, importance: Callable[[Request], int | None]) -> None:
        """Ask ``importance`` first for the priority of what a request caches."""
        otherwise = self._group.importance

        def of_request(request: Request) -> int:
            priority = importance(request)
            return otherwise(request) if priority is None else priority

        self._group.importance = of_request

    def handle(self, request: Request) -> Node | None:
        """The node that ends where the cached tokens of an admitted request end."""
        table = self._group.req_to_blocks.get(request.request_id)
        return table.handle if table is not None else None

    def is_prefilling(self, running: Request) -> bool:
        """Whether whole blocks of the tokens that a request has are not even scheduled. O(1)."""
        handle = self.handle(running)
        return handle is not None and handle.end + self._group.block_size <= running.num_tokens

    def is_ahead(self, running: Request, waiting: Request) -> bool:
        """Whether a running request is yet to compute the block that a waiting one lacks next.

        That is the first whole block beyond the cached prefix of the waiting one. Not so once the
        block is scheduled: then it is found. O(path + block size).
        """
        match, handle = self.probe(waiting), self.handle(running)
        if match is None or handle is None:
            return False
        block_size = self._group.block_size
        start = match.num_tokens // block_size * block_size
        stop = start + block_size
        if start != handle.end or stop > min(running.num_tokens, waiting.num_tokens):
            return False
        node = match.node
        while node is not handle and node.start >= start and node.parent is not None:
            node = node.parent
        data = self._keys.data
        return node is handle and data(running, start, stop) == data(waiting, start, stop)

    def prepare(self, request: Request) -> None:
        """Make the key of a request that arrives, so that no lookup has to. O(tokens)."""
        if self.prefix_cache_lookup_enabled(request):
            self._keys.key(request)

    def estimate_cached_tokens(self, request: Request) -> int:
        table = self._group.req_to_blocks.get(request.request_id)
        return table.num_cached * self._group.block_size if table else 0

    def keep_computed_tokens(self, request: Request) -> None:
        """Before a request's blocks are freed: cache what it computed, and nothing else.

        vLLM caches full blocks when it allocates them, before the step runs. A request that
        another one preempts in the same step, or whose KV failed to load, has not computed all of
        them: those must go. What it did compute of its last block stays at its leaf.
        """
        table = self._group.req_to_blocks.get(request.request_id)
        if table is None:
            return
        num_computed = request.num_computed_tokens
        if num_computed < table.num_cached * self._group.block_size:
            self._group.take_back(request, num_computed)
        if self._token_granular:
            # Tokens of steps in flight may be drafts; the last sampled one is not computed yet.
            num_final = min(num_computed - request.num_in_flight_tokens, request.num_tokens)
            if num_final - table.num_cached * self._group.block_size >= self._min_partial_tokens:
                self._group.cache_tail(request, num_final, self._min_partial_tokens)

    def on_adapter_reloaded(self, lora_int_id: int) -> None:
        """Nothing that was computed with the adapter before may be found any more."""
        self._keys.adapter_reloaded(lora_int_id)
        self._matches.clear()

    def forget_key(self, request: Request) -> None:
        """The request ended, was preempted, or its tokens are about to change."""
        self._keys.forget(request)
        self._matches.pop(request.request_id, None)

    def free(self, request: Request) -> None:
        self.forget_key(request)
        self._group.free(request.request_id)

    def pop_blocks_for_free(self, request: Request) -> list[KVCacheBlock]:
        self.forget_key(request)
        return self._group.pop_blocks_for_free(request.request_id)  # type: ignore[return-value]

    def record_blocks_for_zeroing(self, request_id: str, start_token: int) -> None:
        if self._group.records_new_block_ids:
            assert start_token % self._group.block_size == 0
            start = start_token // self._group.block_size
            self._group.new_block_ids += self._group.req_to_blocks[request_id].ids[start:]

    def new_step_starts(self) -> None:
        super().new_step_starts()
        if self._check_every_step:
            self._pool.check()


def _starts_of_items_around(request: Request, num_tokens: int) -> list[int]:
    """Where the items begin inside which the first ``num_tokens`` tokens end. O(log items)."""
    features = request.mm_features
    if not features:
        return []
    first, end = get_mm_features_in_window(features, num_tokens, num_tokens)
    return [feature.mm_position.offset for feature in features[first:end]]


@contextmanager
def _our_parts(config: RadixConfig) -> Iterator[None]:
    """Have vLLM's coordinator build our pool and our group manager while it is constructed."""

    def make_tree(block_size: int, num_blocks: int) -> RadixTree:
        return RadixTree(block_size, num_blocks, make_policy(config.eviction))

    def make_pool(*args: Any, **kwargs: Any) -> RadixBlockPool:
        return RadixBlockPool(
            *args, make_tree=make_tree, free_watermark=config.free_watermark, **kwargs
        )

    def make_group_manager(
        kv_cache_spec: Any,
        max_in_flight_tokens: int,
        max_model_len: int,
        role: str | None = None,
        **kwargs: Any,
    ) -> RadixGroupManager:
        return RadixGroupManager(kv_cache_spec, **kwargs)

    with (
        compat.substituted(kv_cache_coordinator, "BlockPool", make_pool),
        compat.substituted(
            kv_cache_coordinator, "get_manager_for_kv_cache_spec", make_group_manager
        ),
    ):
        yield
