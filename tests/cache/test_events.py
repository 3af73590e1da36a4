# SPDX-License-Identifier: Apache-2.0
"""Whoever follows the published KV events knows what is cached."""

import random
from types import SimpleNamespace
from typing import Any

import pytest
from scheduling.engine import Engine
from scheduling.factory import BLOCK_SIZE, image, lora, make_request, make_scheduler
from vllm.distributed.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KVCacheEvent,
    KVEventBatch,
)
from vllm.v1.core.sched.async_scheduler import AsyncScheduler as VllmAsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler as VllmScheduler

import vllm_radix
from vllm_radix.tree import Node

Prefix = tuple[object, ...]
"""Who it belongs to, and its tokens."""


class Follower:
    """Rebuilds a cache from its events, and holds them to their contract."""

    def __init__(self) -> None:
        self.prefixes: dict[object, Prefix] = {}
        """Cached prefixes by the hash of their last block."""
        self.parents: dict[object, object] = {}
        self.seen: list[type] = []

    def follow(self, event: KVCacheEvent) -> None:
        self.seen.append(type(event))
        if isinstance(event, AllBlocksCleared):
            self.__init__()  # type: ignore[misc]
        elif isinstance(event, BlockRemoved):
            for block_hash in event.block_hashes:
                # Each goes once.
                del self.prefixes[block_hash], self.parents[block_hash]
        else:
            assert isinstance(event, BlockStored)
            self.store(event)

    def store(self, event: BlockStored) -> None:
        assert event.block_size == BLOCK_SIZE
        assert len(event.token_ids) == BLOCK_SIZE * len(event.block_hashes)
        parent = event.parent_block_hash
        for i, block_hash in enumerate(event.block_hashes):
            assert block_hash not in self.prefixes, "a block is stored once"
            if parent is None:
                extra_keys = event.extra_keys[i] if event.extra_keys else None
                above: Prefix = (extra_keys,)
            else:
                # Parents come before their children.
                above = self.prefixes[parent]
            tokens = event.token_ids[i * BLOCK_SIZE : (i + 1) * BLOCK_SIZE]
            self.prefixes[block_hash] = (*above, *tokens)
            self.parents[block_hash] = parent
            parent = block_hash


def follow_all(engine: Engine, batches: list[KVEventBatch], follower: Follower) -> None:
    """Follow what was published, and what will be with the next output."""
    for event in [e for batch in batches for e in batch.events] + engine.manager.take_events():
        follower.follow(event)
    batches.clear()
    assert follower.parents.keys() | {None} >= set(follower.parents.values())


def listen(engine: Engine) -> list[KVEventBatch]:
    batches: list[KVEventBatch] = []
    engine.scheduler.kv_event_publisher = SimpleNamespace(publish=batches.append)  # type: ignore
    return batches


def cached_prefixes(engine: Engine) -> set[Prefix]:
    """Every prefix of whole blocks that the tree holds."""
    found: set[Prefix] = set()
    prefixes: dict[Node, Prefix] = {}
    for node in engine.tree:
        if node.parent is None:
            namespace = node.namespace  # type: ignore[attr-defined]
            adapter = namespace.adapter[:1] if namespace.adapter else ()
            salt = (namespace.salt,) if namespace.salt else ()
            prefixes[node] = (adapter + salt or None,)
            continue
        prefix = prefixes[node] = prefixes[node.parent] + tuple(
            memoryview(bytes(node.edge)).cast("i")
        )
        first = node.start // BLOCK_SIZE + 1
        found |= {prefix[: 1 + k * BLOCK_SIZE] for k in range(first, node.end // BLOCK_SIZE + 1)}
    return found


OPTIONS: dict[str, dict[str, Any]] = {
    "fcfs": {"num_blocks": 1 + 20},
    "priority": {"num_blocks": 1 + 20, "policy": "priority"},
    "whole blocks": {"num_blocks": 1 + 20, "radix": {"token_granular": False}},
    "watermark": {"num_blocks": 1 + 24, "radix": {"free_watermark": 0.3}},
    "async": {"num_blocks": 1 + 20, "async_scheduling": True},
    "drafts": {"num_blocks": 1 + 20, "num_spec_tokens": 2},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_the_events_tell_what_the_tree_holds(name: str) -> None:
    rng = random.Random(name)
    engine = Engine(
        make_scheduler(
            kv_events=True, max_num_seqs=5, max_num_batched_tokens=40, max_model_len=50,
            **OPTIONS[name],
        ),
    )  # fmt: skip
    batches, follower = listen(engine), Follower()
    num_preemptions = num_evictions = 0
    for _ in range(250):
        if rng.random() < 0.3:
            prompt = [rng.choice([0, 0, 1]) for _ in range(rng.randint(1, 24))]
            engine.add(
                make_request(
                    prompt,
                    hashed=True,
                    seed=rng.choice([1, 1, 2]),
                    max_tokens=rng.randint(1, 20),
                    priority=rng.randint(0, 2),
                    **rng.choice([{}, {}, {"cache_salt": "a"}, {"lora_request": lora("l", 1)}]),
                )
            )
        if rng.random() < 0.03:
            engine.abort(rng.choice(list(engine.requests.values())))
        if rng.random() < 0.02:
            engine.scheduler.reset_prefix_cache(reset_running_requests=rng.random() < 0.5)
        num_preemptions += len(engine.step().preempted_req_ids or ())
        engine.check()
        follow_all(engine, batches, follower)
        num_evictions += follower.seen.count(BlockRemoved)
        follower.seen.clear()
        assert set(follower.prefixes.values()) == cached_prefixes(engine)
        assert len(follower.prefixes) == len(cached_prefixes(engine))
    # The pool was small enough for all of it to happen.
    assert num_preemptions > 1
    assert num_evictions > 50
    engine.run()
    engine.check_idle()


@pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("report_mode", ["incremental", "full"])
def test_where_nothing_is_computed_twice_the_events_are_those_of_stock(
    async_scheduling: bool, report_mode: str
) -> None:
    stock = VllmAsyncScheduler if async_scheduling else VllmScheduler
    published = []
    for scheduler_cls in (vllm_radix.Scheduler, stock):
        engine = Engine(
            make_scheduler(
                scheduler_cls, kv_events=True, async_scheduling=async_scheduling, num_blocks=500,
                radix={"token_granular": False},
            ),
            vocab_size=10**6,
        )  # fmt: skip
        batches = listen(engine)
        rng = random.Random(5)
        stems = [[rng.randrange(99) for _ in range(20)] for _ in range(2)]
        for number in range(12):
            engine.generate(
                make_request(
                    [*rng.choice(stems)[: rng.randint(1, 20)], 100 + number],
                    hashed=True,
                    seed=number,
                    cache_salt=rng.choice([None, "a"]),
                    session_id=f"session {number % 3}",
                    sampling={"extra_args": {"kv_cache_report_mode": report_mode}},
                )
            )
        assert engine.scheduler.reset_prefix_cache()
        engine.step()
        published.append([event for batch in batches for event in batch.events])
    assert published[0] == published[1]
    assert len(published[0]) > 30


def test_a_block_that_takes_the_place_of_an_idle_copy_is_no_news() -> None:
    """An answer is generated again: the same is cached, under the same hashes."""
    engine = Engine(make_scheduler(kv_events=True))
    batches = listen(engine)
    first, again = (make_request(list(range(6)), hashed=True, max_tokens=20) for _ in range(2))
    engine.generate(first)
    assert sum(len(batch.events) for batch in batches) == 6
    batches.clear()
    before = dict(engine.pool.block_hashes)
    engine.generate(again)
    assert batches == []
    after = dict(engine.pool.block_hashes)
    assert set(after.values()) == set(before.values())
    assert after.keys() != before.keys()
    for block, block_hash in after.items():
        found = engine.pool.cached_block_hash_to_block.get_one_block(block_hash)
        assert found is not None and found.block_id == block
    engine.check_idle()


def test_no_events_without_a_listener() -> None:
    engine = Engine(make_scheduler())
    batches = listen(engine)
    engine.generate(make_request(list(range(20))))
    assert batches == []
    assert not engine.pool.block_hashes


def test_what_follows_an_evicted_block_is_not_stored() -> None:
    """As after a load that failed: the request goes on, but nobody can find what it computes."""
    engine = Engine(make_scheduler(kv_events=True))
    batches, follower = listen(engine), Follower()
    request = engine.add(make_request(list(range(10)), hashed=True, max_tokens=20))
    for _ in range(4):
        engine.step()
    follow_all(engine, batches, follower)
    assert len(follower.prefixes) == 3
    engine.manager.evict_blocks(set(engine.blocks(request)[1:]))
    while engine.scheduler.has_unfinished_requests():
        engine.step()
        engine.check()
        follow_all(engine, batches, follower)
        assert set(follower.prefixes.values()) == cached_prefixes(engine)
    engine.run()
    follow_all(engine, batches, follower)
    assert set(follower.prefixes.values()) == cached_prefixes(engine)
    assert len(follower.prefixes) == 1


def test_blocks_of_images_carry_the_keys_of_stock() -> None:
    """Their identifiers with their places in the block, so that a router tells images apart."""
    prompts = [
        {"mm_features": [image("cat", 3, 6), image("dog", 12, 5)]},
        {"mm_features": [image("cat", 3, 6), image("cow", 12, 5)]},
        {"mm_features": [image("cat", 4, 6)], "cache_salt": "a"},
        {},
    ]
    stored: list[list[tuple[Any, ...]]] = []
    for scheduler_cls in (vllm_radix.Scheduler, VllmScheduler):
        engine = Engine(make_scheduler(scheduler_cls, kv_events=True, num_blocks=500))
        batches = listen(engine)
        for options in prompts:
            engine.add(make_request([9] * 20, hashed=True, max_tokens=1, **options))
            engine.run()
        events = [event for batch in batches for event in batch.events]
        stored.append([])
        for event in events:
            assert isinstance(event, BlockStored) and event.extra_keys is not None
            stored[-1] += zip(event.block_hashes, event.extra_keys, strict=True)
    ours, stock = stored
    assert ours == stock
    keys = [extra for _, extra in ours]
    assert keys[:3] == [(("cat", 3),), (("cat", -1),), (("cat", -5),)]
    assert (("cow", 0),) in keys and None in keys
    assert len({block_hash for block_hash, _ in ours}) == len(ours)
