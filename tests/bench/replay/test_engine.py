# SPDX-License-Identifier: Apache-2.0
"""Real schedulers in virtual time: the clock, the closed loop, the counts."""

import itertools
from typing import Any

import pytest
from vllm.v1.core.sched.interface import PauseState

from vllm_radix.bench.replay.bounds import BoundFinder
from vllm_radix.bench.replay.cost import CostModel
from vllm_radix.bench.replay.engine import Replay, RequestRecord, StuckError
from vllm_radix.bench.replay.results import summarise
from vllm_radix.bench.replay.schedulers import Limits, build_scheduler, parse_scheduler
from vllm_radix.bench.replay.sessions import Workload
from vllm_radix.bench.replay.workloads import make_generator

AGENTS = {
    "sessions": 8,
    "turns": 3,
    "system_prompts": 2,
    "system_tokens": 100,
    "user_tokens": [20, 40],
    "answer_tokens": [10, 30],
}


def make_replay(
    workload: Workload,
    capacity: int,
    scheduler: str = "stock",
    limits: Limits | None = None,
    **options: Any,
) -> Replay:
    limits = limits or Limits(workload.block_size)
    built = build_scheduler(
        parse_scheduler(scheduler),
        limits,
        capacity // limits.block_size,
        workload.max_tokens + 1,
    )
    return Replay(workload, built, options.pop("cost", CostModel()), **options)


def agents(**parameters: Any) -> Workload:
    return make_generator("agents", {**AGENTS, **parameters}).generate(0)


def hit_rate(records: list[RequestRecord]) -> float:
    return sum(record.num_cached_tokens for record in records) / sum(
        len(record.call.prompt) for record in records
    )


def test_a_lone_request_takes_what_its_steps_cost() -> None:
    workload = make_generator(
        "unique", {"requests": 1, "prompt_tokens": [100, 100], "answer_tokens": [3, 3]}
    ).generate(0)
    cost = CostModel(1.0, 0.1, 0.01, 0.001)
    replay = make_replay(workload, 320, limits=Limits(16, 4, 64), cost=cost)
    replay.run()
    (record,) = replay.records
    # The prompt in chunks of 64 and 36 tokens, then two decodes.
    chunks = (1 + 6.4 + 0.064 * 64) + (1 + 3.6 + 0.036 * 100)
    assert record.arrival == workload.sessions[0].start
    assert record.ttft == pytest.approx(chunks)
    assert record.finish == pytest.approx(record.arrival + chunks + 2 * 1.01)
    assert replay.now == record.finish


@pytest.mark.parametrize("scheduler", ["stock", "radix"])
def test_the_clock_never_goes_back(scheduler: str) -> None:
    times: list[float] = []
    replay = make_replay(agents(), 2000, scheduler)
    replay.on_progress = lambda num_finished: times.append(replay.now)
    replay.run()
    assert len(times) == replay.num_finished == replay.workload.num_requests
    assert times == sorted(times)
    for record in replay.records:
        assert record.first_token is not None and record.finish is not None
        assert record.arrival < record.first_token < record.finish
    arrivals = [record.arrival for record in replay.records]
    assert arrivals == sorted(arrivals)


def test_a_turn_comes_its_think_time_after_the_last_answer() -> None:
    workload = make_generator("tree-search", {"problems": 3, "depth": 3}).generate(0)
    replay = make_replay(workload, 40_000)
    replay.run()
    record_of = {id(record.call): record for record in replay.records}
    for session in workload.sessions:
        for before, after in itertools.pairwise(session.turns):
            last = max(record_of[id(call)].finish or 0.0 for call in before.calls)
            for call in after.calls:
                assert record_of[id(call)].arrival == last + after.think_time


@pytest.mark.parametrize("scheduler", ["stock", "radix"])
def test_a_turn_finds_the_answer_of_the_turn_before(scheduler: str) -> None:
    workload = agents(sessions=1, turns=4)
    replay = make_replay(workload, 4000, scheduler)
    replay.run()
    assert replay.records[0].num_cached_tokens == 0
    for before, after in itertools.pairwise(replay.records):
        # The last token of an answer is never computed.
        num_computed = before.call.num_tokens - 1
        if scheduler == "stock":
            num_computed = num_computed // 16 * 16
        assert after.num_cached_tokens == num_computed


@pytest.mark.parametrize("scheduler", ["stock", "radix"])
@pytest.mark.parametrize("capacity", [480, 800, 1600])
def test_no_first_come_first_served_run_beats_the_bounds(scheduler: str, capacity: int) -> None:
    replay = make_replay(agents(), capacity, scheduler)
    replay.run()
    bounds = BoundFinder([record.call for record in replay.records])
    clairvoyant = bounds.clairvoyant(capacity)
    assert 0 < hit_rate(replay.records) <= clairvoyant <= bounds.unlimited()


def test_an_unlimited_cache_is_reached_with_memory_to_spare() -> None:
    replay = make_replay(agents(), 16_000, "radix")
    replay.run()
    bound = BoundFinder([record.call for record in replay.records]).unlimited()
    # Two that arrive in one step cannot copy parts of blocks from each other.
    assert bound - 0.05 < hit_rate(replay.records) <= bound
    assert replay.evictions.num_blocks == 0


@pytest.mark.parametrize("scheduler", ["stock", "radix"])
def test_the_same_run_gives_the_same_times(scheduler: str) -> None:
    runs = [make_replay(agents(), 800, scheduler) for _ in range(2)]
    for replay in runs:
        replay.run()
    first, second = (
        [(record.arrival, record.first_token, record.finish) for record in replay.records]
        for replay in runs
    )
    assert first == second
    assert runs[0].evictions.num_blocks == runs[1].evictions.num_blocks
    assert (runs[0].evictions.num_blocks or 0) > 0


@pytest.mark.parametrize("scheduler", ["stock", "radix"])
def test_a_preempted_request_counts_once(scheduler: str) -> None:
    workload = make_generator(
        "unique",
        {"requests": 6, "prompt_tokens": [64, 64], "answer_tokens": [150, 150], "rate": 1e6},
    ).generate(0)
    replay = make_replay(workload, 512, scheduler)
    replay.run()
    run = summarise(replay, scheduler, 512, 0)
    assert run is not None and run.is_complete
    assert run.preemptions > 0
    # A resumed request may find its own blocks; that is no hit.
    assert run.hit_rate == 0
    assert run.throughput == pytest.approx(6 * 214 / replay.now)


def test_requests_carry_their_session_if_asked_to() -> None:
    class Recording:
        def __init__(self, add_request: Any) -> None:
            self.add_request = add_request
            self.session_ids: list[str | None] = []

        def __call__(self, request: Any) -> None:
            self.session_ids.append(request.session_id)
            self.add_request(request)

    seen = {}
    for with_ids in (False, True):
        replay = make_replay(agents(sessions=1), 1600, session_ids=with_ids)
        recording = Recording(replay.scheduler.add_request)
        replay.scheduler.add_request = recording  # type: ignore[method-assign]
        replay.run()
        seen[with_ids] = recording.session_ids
    assert seen == {False: [None] * 3, True: ["agent-0"] * 3}


def test_a_scheduler_that_schedules_nothing_is_stuck() -> None:
    replay = make_replay(agents(), 800)
    replay.scheduler.set_pause_state(PauseState.PAUSED_ALL)
    with pytest.raises(StuckError, match=r"In 10 steps .* nothing although 8 requests wait"):
        replay.run()
    assert summarise(replay, "stock", 800, 0) is None


def test_a_few_empty_steps_take_no_time() -> None:
    def run(num_empty: int) -> list[tuple[float, float | None]]:
        replay = make_replay(agents(), 800)
        empty_steps(replay, num_empty)
        replay.run()
        return [(record.arrival, record.finish) for record in replay.records]

    # Other sessions are due later: the clock does not jump to them meanwhile.
    assert run(9) == run(0)


def test_after_many_empty_steps_time_passes_to_the_next_request() -> None:
    workload = agents(sessions=2, turns=1)
    replay = make_replay(workload, 800)
    empty_steps(replay, 10)
    replay.run()
    first, second = replay.records
    assert first.first_token is not None
    assert first.first_token > second.arrival > first.arrival


def empty_steps(replay: Replay, count: int) -> None:
    """Let the scheduler schedule nothing in its first steps, though it could."""
    schedule = replay.scheduler.schedule
    steps = itertools.count(1)

    def scheduled(*args: Any, **kwargs: Any) -> Any:
        paused = next(steps) <= count
        replay.scheduler.set_pause_state(PauseState.PAUSED_ALL if paused else PauseState.UNPAUSED)
        return schedule(*args, **kwargs)

    replay.scheduler.schedule = scheduled  # type: ignore[method-assign]
