# SPDX-License-Identifier: Apache-2.0
"""vLLM's scheduler with our cache: who computes what, and what is left afterwards."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.async_scheduler import AsyncScheduler as VllmAsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler as VllmScheduler
from vllm.v1.engine import core
from vllm.v1.request import Request, RequestStatus, StreamingUpdate

import vllm_radix
from vllm_radix.cache.manager import RadixKVCacheManager
from vllm_radix.scheduling.scheduler import AsyncRadixScheduler, RadixScheduler

from .engine import Engine
from .factory import full_attention, lora, make_request, make_scheduler, sliding_window

WHOLE_BLOCKS = {"token_granular": False}
TWENTY = list(range(100, 120))

either_way = pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])


def make_engine(*, late: bool = False, vocab_size: int = 3, **options: Any) -> Engine:
    """An engine that reuses whole blocks, if the options do not say otherwise."""
    options.setdefault("radix", WHOLE_BLOCKS)
    return Engine(make_scheduler(**options), late=late, vocab_size=vocab_size)


# ---------------------------------------------------------------------- which classes


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_the_class_follows_the_config(policy: str) -> None:
    plain = make_scheduler(policy=policy)
    assert type(plain) is RadixScheduler
    assert not isinstance(plain, VllmAsyncScheduler)
    overlapping = make_scheduler(policy=policy, async_scheduling=True)
    assert type(overlapping) is AsyncRadixScheduler
    assert isinstance(overlapping, VllmAsyncScheduler)


def test_the_class_that_picks_one_cannot_be_derived_from() -> None:
    with pytest.raises(TypeError, match="derive from RadixScheduler"):
        type("Mine", (vllm_radix.Scheduler,), {})


def test_everybody_sees_one_cache() -> None:
    scheduler = make_scheduler()
    manager = scheduler.kv_cache_manager
    (group,) = manager.coordinator.single_type_managers
    assert isinstance(manager, RadixKVCacheManager)
    assert manager.block_pool is manager.coordinator.block_pool is group.block_pool
    assert len(manager.block_pool.blocks) == manager.block_pool.num_gpu_blocks


@pytest.mark.parametrize(
    "options",
    [
        {"enable_caching": False},
        {"specs": (sliding_window(),)},
        {"specs": (full_attention(), sliding_window())},
    ],
    ids=["caching off", "sliding window", "hybrid"],
)
@either_way
def test_other_models_keep_the_manager_of_vllm(
    options: dict[str, Any], async_scheduling: bool
) -> None:
    scheduler = make_scheduler(async_scheduling=async_scheduling, **options)
    assert type(scheduler.kv_cache_manager) is KVCacheManager
    assert scheduler.needs_block_hashes is True
    if len(options.get("specs", ())) < 2:  # the shadow worker has one block table
        engine = Engine(scheduler)
        prompt = [7] * 9
        requests = [make_request(prompt, hashed=True, seed=seed) for seed in (1, 2, 1)]
        for tokens, request in zip(engine.generate(*requests), requests, strict=True):
            assert tokens == engine.worker.continuation(request, 16)
        scheduler.on_adapter_reloaded(1)
        assert scheduler.reset_prefix_cache()


def test_options_reach_the_scheduler_or_stop_the_start() -> None:
    with pytest.raises(ValueError, match=r"there is no option 'evict'.*Valid options are eviction"):
        make_scheduler(radix={"evict": "lru"})


# ---------------------------------------------------------------------- sharing


@either_way
def test_requests_of_one_step_share(async_scheduling: bool) -> None:
    engine = make_engine(async_scheduling=async_scheduling)
    first, second = make_request(TWENTY[:9], "first"), make_request(TWENTY[:9], "second")
    engine.add(first, second)
    assert engine.step().num_scheduled_tokens == {"first": 9, "second": 1}
    assert engine.blocks(first)[:2] == engine.blocks(second)[:2]
    assert engine.blocks(first)[2] != engine.blocks(second)[2]
    engine.check()
    engine.run()
    engine.check_idle()


def test_a_step_shares_whole_blocks_only() -> None:
    """The block in which a match ends could not be copied before it is computed."""
    engine = make_engine(radix={})
    engine.add(make_request(TWENTY[:11], "first"), make_request(TWENTY[:11], "second"))
    assert engine.step().num_scheduled_tokens == {"first": 11, "second": 3}
    engine.check()


@either_way
def test_each_chunk_of_a_prefill_is_shared_once_it_is_scheduled(async_scheduling: bool) -> None:
    engine = make_engine(
        async_scheduling=async_scheduling, max_num_batched_tokens=6, max_num_seqs=2
    )
    first = engine.add(make_request(TWENTY, "first"))
    others = [make_request([*TWENTY, number]) for number in range(5)]
    for number, cached in enumerate((4, 12, 16, 20)):
        assert engine.step().num_scheduled_tokens["first"] == (6, 6, 6, 2)[number]
        assert engine.num_cached(others[number]) == cached // 4
        engine.check()
    second = engine.add(others[4])
    assert engine.step().num_scheduled_tokens == {"first": 1, second.request_id: 1}
    engine.run()
    engine.check_idle()
    assert engine.tokens["first"] == engine.worker.continuation(first, 16)


@pytest.mark.parametrize("length", [15, 16, 17])
@either_way
def test_a_resent_prompt_computes_one_token_at_least(length: int, async_scheduling: bool) -> None:
    engine = make_engine(async_scheduling=async_scheduling)
    prompt = TWENTY[:length]
    engine.generate(make_request(prompt, seed=1))
    for seed in (2, 3):
        again = engine.add(make_request(prompt, seed=seed))
        hit = (length - 1) // 4 * 4
        assert engine.step().num_scheduled_tokens == {again.request_id: length - hit}
        engine.run()
        engine.check_idle()


def test_what_was_generated_is_cached_too() -> None:
    engine = make_engine()
    request = make_request(TWENTY[:6], max_tokens=10)
    (tokens,) = engine.generate(request)
    # The last token was sampled, but its KV not computed.
    assert engine.num_cached(make_request([*TWENTY[:6], *tokens, 0])) == 15 // 4
    turn = engine.add(make_request([*TWENTY[:6], *tokens, 8, 8, 8]))
    assert engine.step().num_scheduled_tokens == {turn.request_id: 19 - 12}
    engine.run()
    engine.check_idle()


def test_with_token_granularity_the_next_turn_computes_only_what_is_new() -> None:
    engine = make_engine(radix={})
    (tokens,) = engine.generate(make_request(TWENTY[:6], max_tokens=10))
    turn = engine.add(make_request([*TWENTY[:6], *tokens, 8, 8, 8]))
    assert engine.step().num_scheduled_tokens == {turn.request_id: 19 - 15}
    engine.run()
    engine.check_idle()


@either_way
def test_a_request_that_computes_what_another_does_keeps_its_own_blocks(
    async_scheduling: bool,
) -> None:
    engine = make_engine(async_scheduling=async_scheduling)
    twins = [make_request(TWENTY[:6], seed=1, max_tokens=n) for n in (6, 20)]
    engine.add(*twins)
    engine.step()
    tables: list[list[int]] = []
    while engine.scheduler.has_unfinished_requests():
        engine.step()
        engine.check()
        tables.append(engine.blocks(twins[1]))
        # Whatever became of its twin: a table only grows.
        assert not tables[-1] or all(tables[-1][: len(old)] == old for old in tables)
    engine.run()
    engine.check_idle()
    assert engine.tokens[twins[1].request_id] == engine.worker.continuation(twins[1], 20)


# ---------------------------------------------------------------------- order


def arrivals(count: int, seed: int) -> list[Request]:
    """Requests in pairs of which the later has its prefix cached when the earlier has not."""
    rng = random.Random(seed)
    stems = [[rng.randrange(50) for _ in range(12)] for _ in range(3)]
    return [
        make_request(
            [*rng.choice(stems)[: rng.randint(1, 12)], rng.randrange(50)],
            f"request {number}",
            arrival_time=float(number),
            priority=rng.randint(0, 2),
            max_tokens=3,
        )
        for number in range(count)
    ]


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_the_queue_keeps_its_order(policy: str) -> None:
    engine = make_engine(policy=policy, max_num_seqs=2, radix={"schedule": "fcfs"})
    requests = arrivals(20, seed=1)
    engine.add(*requests)
    admitted: list[str] = []
    while engine.scheduler.has_unfinished_requests():
        admitted += [new.req_id for new in engine.step().scheduled_new_reqs]
    if policy == "priority":
        requests.sort(key=lambda request: (request.priority, request.arrival_time))
    assert admitted == [request.request_id for request in requests]


# ---------------------------------------------------------------------- preemption


@either_way
@pytest.mark.parametrize("radix", [WHOLE_BLOCKS, {}], ids=["blocks", "tokens"])
def test_a_preempted_request_reuses_what_is_still_cached(
    async_scheduling: bool, radix: dict[str, Any]
) -> None:
    engine = make_engine(num_blocks=1 + 8, async_scheduling=async_scheduling, radix=radix)
    requests = [make_request([number] * 8, max_tokens=16) for number in (5, 6)]
    engine.add(*requests)
    resumed: list[tuple[int, int]] = []
    while engine.scheduler.has_unfinished_requests():
        scheduled = engine.step()
        engine.check()
        cached = scheduled.scheduled_cached_reqs
        resumed += [
            (computed, engine.requests[request_id].num_tokens)
            for request_id, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True)
            if request_id in cached.resumed_req_ids
        ]
    engine.run()
    engine.check_idle()
    assert [request.num_preemptions > 0 for request in requests] == [False, True]
    assert resumed and all(0 < computed < total for computed, total in resumed)
    for request in requests:
        assert engine.tokens[request.request_id] == engine.worker.continuation(request, 16)


def test_the_hit_rate_counts_a_request_once() -> None:
    engine = make_engine(num_blocks=1 + 8)
    engine.generate(make_request([5] * 8, max_tokens=1))
    engine.stats.clear()
    requests = [make_request([number] * 8, max_tokens=16) for number in (5, 6)]
    engine.generate(*requests)
    assert requests[1].num_preemptions > 0
    stats = [step.prefix_cache_stats for step in engine.stats]
    assert sum(step.requests for step in stats) == 2
    assert sum(step.queries for step in stats) == 16
    assert sum(step.hits for step in stats) == 4
    assert sum(step.preempted_requests for step in stats) == requests[1].num_preemptions
    assert sum(step.preempted_hits for step in stats) > 0


@pytest.mark.parametrize("radix", [WHOLE_BLOCKS, {}], ids=["blocks", "tokens"])
def test_a_request_preempted_in_the_step_that_would_compute_it_caches_nothing(
    radix: dict[str, Any],
) -> None:
    """A request of lower priority is scheduled, and then gives way in the same step."""
    engine = make_engine(
        num_blocks=1 + 8,
        policy="priority",
        max_num_seqs=4,
        max_num_batched_tokens=12,
        long_prefill_token_threshold=8,
        radix=radix,
    )
    low = engine.add(make_request(TWENTY + TWENTY[:8], "low", priority=5, max_tokens=4))
    assert engine.step().num_scheduled_tokens == {"low": 12}
    engine.add(make_request([7] * 4, "high", priority=0, max_tokens=4))
    assert engine.step().num_scheduled_tokens == {"low": 8, "high": 4}
    assert engine.step().num_scheduled_tokens == {"high": 1}
    assert low.num_preemptions == 1
    engine.check()
    assert engine.num_cached(low) == 20 // 4
    engine.run()
    engine.check_idle()
    assert engine.tokens["low"] == engine.worker.continuation(low, 4)


@pytest.mark.parametrize("radix", [WHOLE_BLOCKS, {}], ids=["blocks", "tokens"])
def test_nor_if_another_request_relies_on_what_it_cached(radix: dict[str, Any]) -> None:
    """It computes the same block, and by then the tree had taken the other's."""
    engine = make_engine(num_blocks=1 + 5, policy="priority", radix=radix)
    low = engine.add(make_request([1] * 5, "low", priority=5, max_tokens=12))
    engine.step()
    twin = make_request(list(low.all_token_ids), "twin", priority=0, max_tokens=11)
    engine.add(twin, make_request([7] * 7, "high", priority=0, max_tokens=12))
    for _ in range(3):
        engine.step()
        engine.check()
    assert low.num_preemptions == 1
    engine.run()
    engine.check_idle()
    assert engine.tokens["low"] == engine.worker.continuation(low, 12)


# ---------------------------------------------------------------------- abort


@either_way
@pytest.mark.parametrize("radix", [WHOLE_BLOCKS, {}], ids=["blocks", "tokens"])
@pytest.mark.parametrize("num_spec_tokens", [0, 2], ids=["no drafts", "drafts"])
def test_a_request_can_be_aborted_at_any_time(
    async_scheduling: bool, radix: dict[str, Any], num_spec_tokens: int
) -> None:
    """Waiting, between two chunks of its prefill, decoding, and while a step is in flight."""
    for num_steps in range(12):
        engine = make_engine(
            async_scheduling=async_scheduling,
            num_spec_tokens=num_spec_tokens,
            max_num_batched_tokens=7 + num_spec_tokens * 16,
            max_num_seqs=2,
            radix=radix,
        )
        requests = [make_request(TWENTY[:18], seed=seed) for seed in (1, 1, 2)]
        engine.add(*requests)
        for _ in range(num_steps):
            engine.step()
            engine.check()
        for request in requests[::-1]:
            engine.abort(request)
            engine.check()
        assert engine.num_used_blocks == 0
        # What was computed may be used, and nothing else.
        again = make_request(TWENTY[:18], seed=3)
        engine.generate(again)
        engine.check_idle()
        assert engine.tokens[again.request_id] == engine.worker.continuation(again, 16)


def test_an_abort_between_two_chunks_keeps_what_was_computed() -> None:
    engine = make_engine(max_num_batched_tokens=7, max_num_seqs=2)
    request = engine.add(make_request(TWENTY))
    engine.step()
    engine.step()
    engine.abort(request)
    engine.check()
    again = engine.add(make_request(TWENTY))
    assert engine.num_cached(again) == 14 // 4
    engine.run()
    engine.check_idle()


# ---------------------------------------------------------------------- drafts


@either_way
@pytest.mark.parametrize("radix", [WHOLE_BLOCKS, {}], ids=["blocks", "tokens"])
def test_drafts_enter_the_tree_only_once_they_are_accepted(
    async_scheduling: bool, radix: dict[str, Any]
) -> None:
    engine = make_engine(
        async_scheduling=async_scheduling, num_spec_tokens=3, radix=radix, num_blocks=1 + 20
    )
    rng = random.Random(0)
    requests = [
        make_request([rng.randrange(3) for _ in range(rng.randint(1, 9))], max_tokens=24, seed=seed)
        for seed in (1, 1, 2, 3)
    ]
    engine.add(*requests)
    num_free = engine.pool.num_gpu_blocks - 1
    while engine.scheduler.has_unfinished_requests():
        engine.step()
        engine.check()
        final = {tuple(request.all_token_ids) for request in requests}
        for prefix in cached_prefixes(engine):
            assert any(tokens[: len(prefix)] == prefix for tokens in final)
        assert engine.num_used_blocks + engine.pool.get_num_free_blocks() == num_free
    engine.run()
    engine.check_idle()
    drafts = [step.spec_decoding_stats for step in engine.stats if step.spec_decoding_stats]
    accepted = sum(step.num_accepted_tokens for step in drafts)
    assert 0 < accepted < sum(step.num_draft_tokens for step in drafts)
    for request in requests:
        assert engine.tokens[request.request_id] == engine.worker.continuation(request, 24)


def cached_prefixes(engine: Engine) -> list[tuple[int, ...]]:
    """The tokens from the root to each node."""
    prefixes: dict[Any, tuple[int, ...]] = {}
    for node in engine.tree:
        above = prefixes[node.parent] if node.parent is not None else ()
        prefixes[node] = above + tuple(memoryview(bytes(node.edge)).cast("i"))
    return list(prefixes.values())


# ---------------------------------------------------------------------- adapters


def reload(engine: Engine, name: str = "a") -> None:
    """What the engine core does when a client loads other weights under an adapter's name."""
    like = object.__new__(core.EngineCore)
    like.scheduler = engine.scheduler
    like.model_executor = type("Executor", (), {"add_lora": lambda self, request: True})()
    like.add_lora(lora(name, 1, load_inplace=True))


def adapted(prompt: list[int], name: str = "a", **options: Any) -> Request:
    return make_request(prompt, lora_request=lora(name, 1), **options)


def test_nothing_computed_with_an_adapter_is_found_after_it_was_reloaded() -> None:
    engine = make_engine()
    (tokens,) = engine.generate(adapted(TWENTY))
    again = adapted([*TWENTY, *tokens])
    assert engine.num_cached(again) == 8
    waiting = engine.add(adapted([*TWENTY, *tokens, 1]))
    assert engine.num_cached(waiting) == 8
    reload(engine)
    assert engine.num_cached(again) == 0
    assert engine.step().num_scheduled_tokens == {waiting.request_id: 37}
    # Everybody else's stays.
    engine.abort(waiting)
    engine.generate(make_request(TWENTY))
    reload(engine)
    assert engine.num_cached(make_request([*TWENTY, 0])) == 5
    engine.check_idle()


@pytest.mark.parametrize("length", [3, 4, 6, 9])
@pytest.mark.parametrize("radix", [WHOLE_BLOCKS, {}], ids=["blocks", "tokens"])
@either_way
def test_nor_what_a_request_computed_while_it_was_reloaded(
    length: int, radix: dict[str, Any], async_scheduling: bool
) -> None:
    """Its KV depends on the old weights, from its first token on."""
    engine = make_engine(radix=radix, async_scheduling=async_scheduling)
    request = engine.add(adapted(TWENTY[:length], max_tokens=12))
    engine.step()
    reload(engine)
    engine.run()
    engine.check_idle()
    again = adapted([*request.all_token_ids, 0])
    assert engine.manager.get_computed_blocks(again)[1] == 0


# ---------------------------------------------------------------------- reset


@either_way
def test_reset_when_idle_forgets_everything(async_scheduling: bool) -> None:
    engine = make_engine(async_scheduling=async_scheduling)
    engine.generate(make_request(TWENTY))
    assert engine.num_cached(make_request([*TWENTY, 0])) == 5
    assert engine.scheduler.reset_prefix_cache()
    assert engine.num_cached(make_request([*TWENTY, 0])) == 0
    engine.step()
    assert engine.stats[-1].prefix_cache_stats.reset
    engine.check_idle()


def test_reset_while_requests_run_is_refused() -> None:
    engine = make_engine()
    engine.generate(make_request(TWENTY))
    request = engine.add(make_request([*TWENTY, 1]))
    engine.step()
    assert not engine.scheduler.reset_prefix_cache()
    assert engine.num_cached(make_request([*TWENTY, 0])) == 5
    engine.run()
    assert engine.tokens[request.request_id] == engine.worker.continuation(request, 16)
    engine.check_idle()


@either_way
def test_reset_may_preempt_the_requests_that_run(async_scheduling: bool) -> None:
    engine = make_engine(async_scheduling=async_scheduling)
    requests = [make_request(TWENTY[:n], seed=n) for n in (20, 10)]
    engine.add(*requests)
    for _ in range(4):
        engine.step()
    assert engine.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert engine.num_used_blocks == 0
    assert not list(engine.tree)
    scheduled = engine.step()
    assert scheduled.scheduled_cached_reqs.resumed_req_ids == {r.request_id for r in requests}
    engine.check()
    engine.run()
    engine.check_idle()
    for request in requests:
        assert engine.tokens[request.request_id] == engine.worker.continuation(request, 16)


# ---------------------------------------------------------------------- as on stock


def random_workload(seed: int) -> Callable[[Engine, int], None]:
    """What arrives before each step: prompts that continue one another, some salted."""
    rng = random.Random(seed)
    plan: dict[int, list[dict[str, Any]]] = {}
    stems = [[rng.randrange(1000) for _ in range(40)] for _ in range(4)]
    for number in range(60):
        prompt = rng.choice(stems)[: rng.randint(1, 40)]
        prompt += [rng.randrange(1000) for _ in range(rng.randint(0, 10))]
        plan.setdefault(rng.randrange(60), []).append(
            {
                "prompt": prompt,
                "request_id": f"request {number}",
                "seed": number,
                "max_tokens": rng.randint(1, 20),
                "cache_salt": rng.choice([None, None, "a"]),
                "priority": rng.randint(0, 2),
                "arrival_time": float(number),
                "sampling": {"skip_reading_prefix_cache": True} if number % 10 == 9 else None,
            }
        )
    aborts = {rng.randrange(10, 60): f"request {rng.randrange(60)}" for _ in range(5)}

    def arrive(engine: Engine, step: int) -> None:
        for options in plan.get(step, []):
            engine.add(make_request(**options, hashed=True))
        request = engine.requests.get(aborts.get(step, ""))
        if request is not None:
            engine.scheduler.finish_requests(request.request_id, RequestStatus.FINISHED_ABORTED)

    return arrive


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_batched_tokens": 24},
        {"policy": "priority", "max_num_seqs": 5},
        {"async_scheduling": True},
        {"num_spec_tokens": 2},
    ],
    ids=["all at once", "chunks", "priority", "async", "drafts"],
)
def test_where_nothing_is_evicted_everything_counts_as_on_stock(options: dict[str, Any]) -> None:
    stock_cls = VllmAsyncScheduler if options.get("async_scheduling") else VllmScheduler
    ours, stock = (
        Engine(
            make_scheduler(
                cls, num_blocks=1000, radix=WHOLE_BLOCKS | {"schedule": "fcfs"}, **options
            ),
            vocab_size=10**6,
        )
        for cls in (vllm_radix.Scheduler, stock_cls)
    )
    arrive = random_workload(seed=len(str(options)))
    for step in range(150):
        arrive(ours, step)
        arrive(stock, step)
        scheduled = [engine.step() for engine in (ours, stock)]
        assert scheduled[0].num_scheduled_tokens == scheduled[1].num_scheduled_tokens
        ours.check()
        assert [s.prefix_cache_stats for s in ours.stats] == [
            s.prefix_cache_stats for s in stock.stats
        ]
        # Two requests in the midst of the same prompt compute it twice. On stock either copy is
        # free once its owner ends; here the later request relies on the other's. And if somebody
        # computes what is cached, on stock others share the idle copy; here they share the new one.
        assert ours.num_used_blocks - ours.num_duplicated_blocks <= stock.num_used_blocks
        del ours.stats[:], stock.stats[:]
    assert not ours.scheduler.has_unfinished_requests()
    assert ours.tokens == stock.tokens
    counted = [
        {
            output.request_id: (
                output.prefill_stats.num_prompt_tokens,
                output.prefill_stats.num_cached_tokens,
                output.prefill_stats.num_local_cached_tokens,
            )
            for output in engine.outputs
            if output.prefill_stats is not None
        }
        for engine in (ours, stock)
    ]
    assert counted[0] == counted[1]
    ours.check_idle()


@either_way
def test_an_answer_that_is_generated_again_takes_no_more_memory_than_before(
    async_scheduling: bool,
) -> None:
    """Its blocks take the places of those that are cached, in a pool that has room for one."""
    engine = Engine(make_scheduler(num_blocks=1 + 12, async_scheduling=async_scheduling))
    prompt = [1, 2, 3, 4, 5]
    first = make_request(prompt, max_tokens=38)
    again = make_request(prompt, max_tokens=38)
    for request in (first, again):
        engine.add(request)
        while request.request_id not in engine.finished:
            engine.step()
            engine.check()
        assert request.num_preemptions == 0
        assert engine.tokens[request.request_id] == engine.worker.continuation(request, 38)
    engine.run()
    engine.check_idle()
    assert engine.tree.num_cached_blocks == 11


def test_a_session_that_gets_other_tokens_while_it_waits_is_ranked_anew() -> None:
    """As one that was preempted may."""
    engine = Engine(make_scheduler(max_num_seqs=1))
    engine.generate(make_request([1] * 12, max_tokens=1))
    engine.add(make_request([4] * 8, max_tokens=9))
    engine.step()
    session = engine.add(make_request([1] * 3, "session", resumable=True))
    engine.add(make_request([1] * 6, "other"))
    engine.step()
    queue = engine.scheduler.affinity_queue
    assert queue is not None
    assert [entry.request.request_id for entry in queue.ordered()] == ["other", "session"]
    update = StreamingUpdate.from_request(make_request([1] * 10, resumable=True))
    assert update is not None
    engine.scheduler._update_request_as_session(session, update)
    assert [entry.request.request_id for entry in queue.ordered()] == ["session", "other"]
