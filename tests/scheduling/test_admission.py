# SPDX-License-Identifier: Apache-2.0
"""Which requests wait for the sake of what is cached, on vLLM's scheduler with a small pool."""

from typing import Any

import pytest
from vllm.v1.request import Request

from vllm_radix.scheduling import admission

from .engine import Engine
from .factory import lora, make_request, make_scheduler, sliding_window

SYSTEM = list(range(100, 132))
either_way = pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Server:
    """Blocks of 4 tokens. Time passes only when a test says so."""

    def __init__(self, num_blocks: int, **options: Any) -> None:
        radix = options.pop("radix", {})
        self.engine = Engine(
            make_scheduler(num_blocks=1 + num_blocks, radix=radix, **options), vocab_size=10**6
        )
        self.clock = Clock()
        self.scheduler: Any = self.engine.scheduler
        if self.scheduler.admission is not None:
            self.scheduler.admission.clock = self.clock
        self.admitted: list[str] = []

    def add(self, name: str, prompt: list[int], **options: Any) -> Request:
        return self.engine.add(make_request(prompt, name, **options))

    def num_cached_tokens(self, request: Request) -> int:
        """Prompt tokens that a request found when it was admitted."""
        (stats,) = [
            output.prefill_stats
            for output in self.engine.outputs
            if output.request_id == request.request_id and output.prefill_stats is not None
        ]
        return stats.num_cached_tokens

    def step(self, num_steps: int = 1) -> None:
        for _ in range(num_steps):
            self.clock.now += 0.1
            scheduled = self.engine.step()
            self.engine.check()
            self.admitted += [new.req_id for new in scheduled.scheduled_new_reqs]

    def finish(self) -> None:
        for _ in range(2000):
            if not self.scheduler.has_unfinished_requests():
                break
            self.step()
        self.engine.run()
        self.engine.check_idle()


@either_way
def test_requests_that_share_a_branch_run_together(async_scheduling: bool) -> None:
    server = Server(64, max_num_seqs=1, async_scheduling=async_scheduling)
    for number in range(6):
        group = number % 2
        server.add(f"{'ab'[group]}{number // 2}", [group] * 24 + [50 + number], max_tokens=2)
    server.finish()
    assert server.admitted == ["a0", "a1", "a2", "b0", "b1", "b2"]


@either_way
def test_a_word_in_common_changes_no_order(async_scheduling: bool) -> None:
    """Prompts that share less than a block with what is cached, all by chance and unequally."""
    server = Server(64, max_num_seqs=1, async_scheduling=async_scheduling)
    server.add("cached", [1, 2, 3, 4, 5, 6, 7, 8, 9], max_tokens=1)
    server.finish()
    server.admitted.clear()
    for number, num_common in enumerate([0, 2, 0, 3, 1, 3]):
        server.add(f"{number}", [*range(1, 1 + num_common), *[50 + number] * 12], max_tokens=2)
    server.add("shares a block", [1, 2, 3, 4, 77, 78], max_tokens=2)
    server.finish()
    assert server.admitted == ["0", "shares a block", "1", "2", "3", "4", "5"]


@either_way
def test_what_a_running_request_is_about_to_compute_is_waited_for(async_scheduling: bool) -> None:
    """Prefill goes in chunks. Others with the same prompt start when the last of it runs."""
    server = Server(64, long_prefill_token_threshold=16, async_scheduling=async_scheduling)
    same = [server.add(f"same{number}", [*range(72), 90 + number]) for number in range(3)]
    server.add("half", [*range(40), *range(200, 220)], max_tokens=2)
    server.add("other", [7] * 60, max_tokens=2)
    expected = [
        ["same0", "other"],  # tokens 0 to 15
        [],
        ["half"],  # tokens 32 to 47, of which it has eight
        [],
        ["same1", "same2"],  # tokens 64 to 72
    ]
    for names in expected:
        server.admitted.clear()
        server.step()
        assert server.admitted == names
    server.finish()
    assert [server.num_cached_tokens(request) for request in same] == [0, 72, 72]


def test_nobody_waits_for_what_was_taken_away() -> None:
    """The request that was to compute it is gone."""
    server = Server(64, long_prefill_token_threshold=16)
    first, second = (server.add(name, [*range(72)]) for name in ("first", "second"))
    server.step(2)
    assert server.admitted == ["first"]
    server.engine.abort(first)
    server.step()
    assert server.admitted == ["first", "second"]
    server.finish()
    assert server.num_cached_tokens(second) == 32


@either_way
def test_first_come_first_served_on_request(async_scheduling: bool) -> None:
    radix = {"schedule": "fcfs"}
    server = Server(64, max_num_seqs=1, async_scheduling=async_scheduling, radix=radix)
    names = []
    for number in range(6):
        names.append(f"{number}")
        server.add(names[-1], [number % 2] * 24 + [50 + number], max_tokens=2)
    server.finish()
    assert server.admitted == names


def test_what_a_waiting_request_will_reuse_is_evicted_last() -> None:
    """The oldest prefix is the one that is waited for."""
    server = Server(24, max_num_seqs=1)
    for name in (1, 2, 3):
        server.engine.generate(make_request([name] * 16, max_tokens=1))
    server.add("running", [9] * 40, max_tokens=12)
    server.step()
    waiting = server.add("waiting", [1] * 16 + [5], max_tokens=1)
    server.finish()
    assert server.num_cached_tokens(waiting) == 16


def conversations(server: Server, num_turns: int) -> None:
    """Teach the server that most turns are followed by another, half a second later."""
    for turn in range(num_turns):
        context = [turn, turn + 1000] * 6
        for _ in range(5):
            request = server.add(f"turn {turn} {len(context)}", context, max_tokens=4)
            server.finish()
            context = list(request.all_token_ids) + [7] * 4
            server.clock.now += 0.3


@either_way
def test_a_cold_request_waits_for_a_conversation_that_will_go_on(async_scheduling: bool) -> None:
    server = Server(40, max_num_seqs=4, async_scheduling=async_scheduling)
    conversations(server, 30)
    # A conversation is idle and another request runs: together they leave no room for a third.
    first = server.add("first", [5, 6] * 24, max_tokens=4)
    server.finish()
    server.add("running", [8] * 40, max_tokens=20)
    server.step()
    server.admitted.clear()
    server.add("cold", [9] * 80, max_tokens=1)
    server.step(2)
    assert server.admitted == []
    again = server.add("again", list(first.all_token_ids) + [7] * 2, max_tokens=1)
    server.finish()
    assert server.admitted == ["again", "cold"]
    assert server.num_cached_tokens(again) >= 48


def hold_one(server: Server) -> Request:
    """A request that waits for a conversation to go on, while another runs."""
    conversations(server, 30)
    server.add("first", [5, 6] * 24, max_tokens=4)
    server.finish()
    server.add("running", [8] * 40, max_tokens=20)
    server.step()
    server.admitted.clear()
    return server.add("cold", [9] * 80, max_tokens=1)


def test_nobody_is_held_for_what_does_not_come() -> None:
    """Nor until somebody else ends: as long as a request runs on average is enough."""
    server = Server(40, max_num_seqs=4)
    hold_one(server)
    server.step(2)
    assert server.admitted == []
    # Turns take four steps of a tenth of a second.
    server.step(3)
    assert server.admitted == ["cold"]


def test_nobody_is_held_by_a_request_whose_last_token_is_in_flight() -> None:
    """There would be nothing to do in the meantime."""
    server = Server(40, max_num_seqs=4, async_scheduling=True)
    hold_one(server)
    # Whatever does not come in the meantime.
    server.scheduler.admission.clock = lambda: 0.0
    while not server.admitted:
        scheduled = server.engine.step()
        assert scheduled.total_num_scheduled_tokens
        server.admitted += [new.req_id for new in scheduled.scheduled_new_reqs]
    assert server.admitted == ["cold"]
    server.finish()


@pytest.mark.parametrize("schedule", ["affinity", "fcfs"])
@either_way
def test_two_requests_of_a_session_may_end_alike(schedule: str, async_scheduling: bool) -> None:
    server = Server(40, async_scheduling=async_scheduling, radix={"schedule": schedule})
    for name in ("one", "another"):
        server.add(name, [3] * 16, max_tokens=1, session_id="session")
    server.finish()
    assert set(server.engine.finished) == {"one", "another"}


def test_who_waits_for_an_adapter_that_is_reloaded_has_nothing_cached_any_more() -> None:
    server = Server(60, max_num_seqs=1)
    adapter = lora("adapter", 1)
    server.add("warm", [1] * 40, max_tokens=1, lora_request=adapter)
    server.finish()
    server.add("running", [8] * 8, max_tokens=30)
    server.step()
    for name, prompt in [("stale", [1] * 40 + [2]), ("good", [8] * 8 + [3])]:
        server.add(name, prompt, max_tokens=1, lora_request=adapter if name == "stale" else None)
    server.step(2)
    assert [w.request.request_id for w in server.scheduler.waiting.ordered()] == ["stale", "good"]
    server.scheduler.on_adapter_reloaded(1)
    server.step()
    assert [w.request.request_id for w in server.scheduler.waiting.ordered()] == ["good", "stale"]


@pytest.mark.parametrize("num_tokens, is_held", [(40, True), (16, False)])
def test_who_is_far_back_is_held_for_all_who_have_a_claim(
    monkeypatch: pytest.MonkeyPatch, num_tokens: int, is_held: bool
) -> None:
    """Of 24 blocks, 12 are cached for the first that waits, and about 5 in use."""
    monkeypatch.setattr(admission, "_MAX_WANTED", 1)
    server = Server(24, max_num_seqs=1)
    server.engine.generate(make_request([1] * 48, max_tokens=1))
    server.add("running", [8] * 16, max_tokens=20)
    server.step()
    server.add("warm", [1] * 48 + [2], max_tokens=1)
    server.add("cold", [9] * num_tokens, max_tokens=1)
    server.step(2)
    warm, cold = server.scheduler.waiting.ordered()
    assert [warm.request.request_id, cold.request.request_id] == ["warm", "cold"]
    assert not server.scheduler.admission.is_held(warm)
    assert server.scheduler.admission.is_held(cold) is is_held


def test_nobody_is_held_while_nothing_runs() -> None:
    server = Server(40, max_num_seqs=4)
    conversations(server, 30)
    server.add("first", [5, 6] * 24, max_tokens=4)
    server.finish()
    server.add("cold", [9] * 120, max_tokens=1)
    server.step()
    assert server.admitted[-1] == "cold"


def test_prompts_that_nobody_continues_hold_nobody() -> None:
    """What was seen once is not expected back, so that a full cache is no reason to wait."""
    server = Server(40, max_num_seqs=4)
    for number in range(60):
        server.add(f"{number}", [number, number + 100] * 12, max_tokens=2)
        server.finish()
        server.clock.now += 0.5
    server.add("running", [8] * 40, max_tokens=20)
    server.step()
    server.add("cold", [9] * 60, max_tokens=1)
    server.step()
    assert server.admitted[-1] == "cold"


@pytest.mark.parametrize("sampling", [{}, {"prompt_logprobs": 1}], ids=["reads", "does not"])
def test_all_that_fit_start_at_once(sampling: dict[str, Any]) -> None:
    """Whether or not a request may read the cache."""
    server = Server(64)
    names = [f"{number}" for number in range(8)]
    for number, name in enumerate(names):
        server.add(name, [number] * 9, max_tokens=4, sampling=sampling)
    server.step()
    assert server.admitted == names


def test_probes_change_nothing() -> None:
    """Many steps in which somebody waits: no statistics, no ages."""
    server = Server(64, max_num_seqs=1)
    server.engine.generate(make_request([1] * 16, max_tokens=1))
    tree = server.scheduler.radix_manager.tree
    server.add("running", [9] * 8, max_tokens=30)
    server.step(2)
    ages = {id(node): (node.last_access, node.hits) for node in tree}
    server.engine.stats.clear()
    server.add("waiting", [1] * 16 + [2])
    for _ in range(10):
        server.engine.step()
    assert {id(node): (node.last_access, node.hits) for node in tree if id(node) in ages} == ages
    assert all(
        stats.prefix_cache_stats is None or stats.prefix_cache_stats.requests == 0
        for stats in server.engine.stats
    )


def test_models_that_vllm_serves_itself_have_their_requests_ordered_too() -> None:
    server = Server(64, max_num_seqs=1, specs=(sliding_window(window=64),), radix={})
    assert server.scheduler.radix_manager is None
    for number in range(6):
        group = number % 2
        prompt = [group] * 24 + [50 + number]
        server.engine.add(
            make_request(prompt, f"{'ab'[group]}{number // 2}", max_tokens=2, hashed=True)
        )
    while server.scheduler.has_unfinished_requests():
        server.admitted += [new.req_id for new in server.engine.step().scheduled_new_reqs]
    assert server.admitted == ["a0", "a1", "a2", "b0", "b1", "b2"]
    assert not server.scheduler.hash_probe._num_blocks
