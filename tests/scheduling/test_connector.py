# SPDX-License-Identifier: Apache-2.0
"""KV that comes from a connector, and blocks that have to wait for one."""

import random
from typing import Any

import pytest
from vllm.v1.request import Request, RequestStatus

from .connector import ConnectedEngine, remote_store
from .factory import make_request, make_scheduler

PROMPT = list(range(100, 114))

either_way = pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])


def make_engine(*, late: bool = False, failures: str = "recompute", **options: Any) -> Any:
    store = remote_store(kv_load_failure_policy=failures)
    return ConnectedEngine(make_scheduler(kv_transfer=store, **options), late=late)


def request(prompt: list[int] = PROMPT, **options: Any) -> Request:
    return make_request(prompt, hashed=True, **options)


def test_a_connector_makes_the_reuse_whole_blocks() -> None:
    engine = make_engine()
    engine.generate(request())
    assert engine.manager.get_computed_blocks(request())[1] == 12


@either_way
def test_what_the_store_has_is_not_computed(async_scheduling: bool) -> None:
    engine = make_engine(async_scheduling=async_scheduling)
    engine.store.num_available = lambda request: 8
    first = engine.add(request(max_tokens=5))
    assert engine.step().num_scheduled_tokens == {first.request_id: 14 - 8}
    engine.check()
    engine.run()
    engine.check_idle()
    # It is cached here now; the store has nothing to add.
    second = engine.add(request(max_tokens=5))
    assert engine.step().num_scheduled_tokens == {second.request_id: 14 - 12}
    engine.run()
    engine.check_idle()
    assert engine.tokens[second.request_id] == engine.worker.continuation(second, 5)


def test_the_store_goes_on_where_the_cache_ends() -> None:
    engine = make_engine()
    engine.generate(request(PROMPT[:5], max_tokens=1))
    engine.store.num_available = lambda request: 12
    longer = engine.add(request(max_tokens=5))
    assert engine.step().num_scheduled_tokens == {longer.request_id: 14 - 12}
    engine.check()
    engine.run()
    engine.check_idle()
    local, remote = (
        sum(s.hits for s in stats if s is not None)
        for stats in (
            [step.prefix_cache_stats for step in engine.stats],
            [step.connector_prefix_cache_stats for step in engine.stats],
        )
    )
    assert (local, remote) == (4, 8)


@either_way
def test_what_is_loaded_in_the_background_is_cached_once_it_is_there(
    async_scheduling: bool,
) -> None:
    engine = make_engine(async_scheduling=async_scheduling)
    engine.store.in_background = True
    engine.store.num_available = lambda request: 12
    first = engine.add(request(max_tokens=5))
    for _ in range(3):
        assert engine.step().num_scheduled_tokens == {}
        engine.check()
        assert engine.num_used_blocks == 3
        assert engine.num_cached(request()) == 0
    engine.arrive()
    engine.step()
    engine.step()
    engine.check()
    assert engine.num_cached(request()) == 3
    engine.run()
    engine.check_idle()
    assert engine.tokens[first.request_id] == engine.worker.continuation(first, 5)


def test_who_starts_by_loading_counts_as_admitted() -> None:
    """So that a request of which nothing is cached waits no longer than promised."""
    engine = make_engine(num_blocks=1 + 12, max_num_seqs=8, radix={"patience": 3.0})
    engine.generate(request(max_tokens=1))
    engine.store.in_background = True
    engine.store.num_available = lambda request: 12
    warm: list[Request] = []

    def add_warm() -> None:
        prompt = [*PROMPT[:8], *[1000 + len(warm)] * 6]
        warm.append(engine.add(make_request(prompt, f"warm {len(warm)}", max_tokens=2)))

    for _ in range(6):
        add_warm()
    engine.step()
    engine.arrive()
    cold = engine.add(make_request([7] * 14, "cold", max_tokens=2))
    num_ahead = len(engine.scheduler.waiting) - 1
    started: list[Request] = []
    for _ in range(40):
        while len(engine.scheduler.waiting) < 6:
            add_warm()
        engine.step()
        started += [load.request for load in engine.loading]
        engine.arrive()
    assert cold in started[: 3 * (num_ahead + 1)]


def test_blocks_that_are_being_loaded_outlive_their_request() -> None:
    engine = make_engine(num_blocks=1 + 5)
    engine.store.in_background = True
    engine.store.num_available = lambda request: 12 if request is first else 0
    first = request()
    engine.add(first)
    engine.step()
    engine.abort(first)
    other = engine.add(request([7] * 8, max_tokens=1))
    engine.step()
    assert engine.num_used_blocks >= 3
    engine.arrive()
    engine.run()
    engine.check_idle()
    assert engine.tokens[other.request_id] == engine.worker.continuation(other, 1)
    assert engine.num_cached(request()) == 0


def test_blocks_that_are_being_sent_outlive_their_request() -> None:
    engine = make_engine()
    engine.store.keeps_finished = True
    engine.generate(request(max_tokens=1))
    (first,) = engine.requests.values()
    assert engine.num_used_blocks == 4
    assert engine.num_cached(request()) == 3
    engine.sent(first)
    engine.step()
    engine.check_idle()
    assert engine.num_cached(request()) == 3


@pytest.mark.parametrize("in_background", [False, True], ids=["in the step", "in the background"])
def test_what_failed_to_load_is_computed(in_background: bool) -> None:
    engine = make_engine()
    engine.generate(request(PROMPT[:5], max_tokens=1))
    engine.store.in_background = in_background
    engine.store.num_available = lambda request: 12
    first = engine.add(request(max_tokens=5))
    engine.broken.add(first.request_id)
    engine.step()
    engine.arrive()
    engine.store.num_available = lambda request: 0
    engine.run()
    engine.check_idle()
    assert engine.tokens[first.request_id] == engine.worker.continuation(first, 5)
    second = request([*PROMPT, 1], max_tokens=5)
    assert engine.num_cached(second) == 3
    engine.generate(second)
    assert engine.tokens[second.request_id] == engine.worker.continuation(second, 5)


@pytest.mark.parametrize("in_background", [False, True], ids=["in the step", "in the background"])
def test_what_failed_to_load_is_not_found_if_the_request_fails(in_background: bool) -> None:
    engine = make_engine(failures="fail")
    engine.generate(request(PROMPT[:5], max_tokens=1))
    engine.store.in_background = in_background
    engine.store.num_available = lambda request: 12
    first = engine.add(request())
    engine.broken.add(first.request_id)
    engine.step()
    engine.arrive()
    engine.step()
    assert first.status == RequestStatus.FINISHED_ERROR
    engine.run()
    engine.check_idle()
    # What was computed here before stays.
    assert engine.num_cached(request()) == 1


def test_an_abort_after_a_failed_load_leaves_nothing_behind_that_was_not_computed() -> None:
    engine = make_engine()
    engine.store.num_available = lambda request: 12
    first = engine.add(request())
    engine.broken.add(first.request_id)
    engine.step()
    engine.abort(first)
    engine.check_idle()
    engine.store.num_available = lambda request: 0
    again = request(max_tokens=5)
    engine.generate(again)
    assert engine.tokens[again.request_id] == engine.worker.continuation(again, 5)


def test_blocks_that_a_step_in_flight_writes_are_not_loaded_into() -> None:
    """A load is not ordered with the step, so the blocks have to wait for its end."""
    engine = make_engine(async_scheduling=True, late=True, num_blocks=1 + 6)
    engine.store.in_background = True
    engine.store.num_available = lambda request: 12 if request is second else 0
    first, second = request([7] * 14), request(max_tokens=5)
    engine.add(first)
    engine.step()
    engine.abort(first)
    engine.check()
    assert len(engine.in_flight) == 1
    assert engine.num_used_blocks == 4
    assert engine.num_cached(request([7] * 14)) == 3
    engine.add(second)
    engine.step()
    engine.step()
    engine.arrive()
    engine.run()
    engine.check_idle()
    assert engine.tokens[second.request_id] == engine.worker.continuation(second, 5)


@pytest.mark.parametrize("failures", ["recompute", "fail"])
@pytest.mark.parametrize(
    ("async_scheduling", "late"), [(False, False), (True, False), (True, True)],
    ids=["sync", "async", "async late"],
)  # fmt: skip
def test_a_busy_store(async_scheduling: bool, late: bool, failures: str) -> None:
    for seed in range(6):
        rng = random.Random(seed)
        # vLLM keeps room for what a failed load was to fill, and can wait forever for that room.
        num_spare = 30 if failures == "recompute" else 0
        engine = make_engine(
            async_scheduling=async_scheduling,
            late=late,
            failures=failures,
            num_blocks=1 + num_spare + rng.randint(14, 24),
            max_num_seqs=4,
            max_num_batched_tokens=24,
            max_model_len=48,
        )
        has = {}
        engine.store.num_available = lambda request: has[request.request_id]  # noqa: B023
        engine.store.in_background = late or seed % 2 == 0
        for _ in range(120):
            if rng.random() < 0.3 and len(engine.scheduler.requests) < 8:
                prompt = [rng.choice([0, 0, 1]) for _ in range(rng.randint(1, 30))]
                one = request(prompt, seed=1, max_tokens=rng.randint(1, 16))
                has[one.request_id] = rng.choice([0, (len(prompt) - 1) // 4 * 4])
                if rng.random() < 0.2 and engine.store.in_background:
                    engine.broken.add(one.request_id)
                engine.add(one)
            if rng.random() < 0.05 and engine.requests:
                engine.abort(rng.choice(list(engine.requests.values())))
            engine.step()
            if rng.random() < 0.5:
                engine.arrive()
            engine.check()
        for _ in range(300):
            engine.step()
            engine.arrive()
        engine.check_idle()
        for one in engine.requests.values():
            tokens = engine.tokens[one.request_id]
            assert tokens == engine.worker.continuation(one, len(tokens))
