# SPDX-License-Identifier: Apache-2.0
"""Everything that can happen to a scheduler, in any order, on a pool that is nearly full.

After each step every block is accounted for, and a shadow of the KV memory shows whether any
request reads, or could ever read, KV that is not its own (see :mod:`.engine`).
"""

import random
from typing import Any

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
from vllm.multimodal.inputs import MultiModalFeatureSpec
from vllm.v1.request import Request, RequestStatus

from .engine import Engine
from .factory import image, lora, make_request, make_scheduler

MAX_MODEL_LEN = 32

pick = st.integers(0, 99)
# Few tokens, in runs: prompts share beginnings, and part inside blocks.
prompts = st.lists(st.tuples(st.sampled_from([0, 1, 2]), st.integers(1, 7)), min_size=1, max_size=4)
# What is seen, after how many tokens, how long it is, and what is heard.
clips = st.tuples(
    st.sampled_from(["cat", "dog"]),
    st.integers(0, 3),
    st.sampled_from([3, 5]),
    st.sampled_from([None, None, "miaow", "bark"]),
)
wishes = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "radix_pin": st.just(True),
        "radix_ttl_s": st.sampled_from([0.02, 0.1]),
        "radix_priority": st.integers(-1, 1),
    },
)
owners = st.sampled_from(
    [{}, {}, {}, {"cache_salt": "a"}, {"lora_request": lora("a", 1)}]
)  # fmt: skip


def features_of(items: list[Any], num_tokens: int) -> list[MultiModalFeatureSpec]:
    """Clips one after the other, as many as there is room for."""
    features = []
    start = 0
    for seen, gap, length, heard in items:
        if start + gap + length <= num_tokens:
            # An identifier stands for one content, and so for one length.
            names = [f"{name} of {length}" for name in (seen, heard) if name is not None]
            features += [image(name, start + gap, length) for name in names]
            start += gap + length
    return features


class SchedulerMachine(RuleBasedStateMachine):
    """One scheduler and its requests. Subclasses set the options."""

    options: dict[str, Any]
    late = False

    @initialize(
        num_blocks=st.integers(9, 14),
        max_num_seqs=st.integers(2, 5),
        max_num_batched_tokens=st.integers(6, 40),
        long_prefill_token_threshold=st.sampled_from([0, 8]),
        next_label=st.integers(-40, -34),
        seed=st.integers(0, 9),
    )
    def start(self, num_blocks: int, next_label: int, seed: int, **limits: int) -> None:
        scheduler = make_scheduler(
            num_blocks=num_blocks, max_model_len=MAX_MODEL_LEN, **limits, **self.options
        )
        self.engine = Engine(scheduler, seed=seed, late=self.late)
        if scheduler.radix_manager is not None:
            # What nobody refers to is forgotten at once; and there are few more labels than clips,
            # of which most were given out before.
            labels = scheduler.radix_manager._keys._labels
            labels.MIN_SIZE_TO_SWEEP = labels._sweep_at = 1
            labels._num_blocks = int
            labels.LOWEST, labels._next = -40, next_label
        self.seen: list[list[int]] = [[0] * 9]

    @property
    def live(self) -> list[Request]:
        return list(self.engine.scheduler.requests.values())

    @rule(
        runs=prompts,
        again=st.none() | pick,
        cut=pick,
        max_tokens=st.integers(1, 20),
        seed=st.sampled_from([1, 1, 2]),
        priority=st.integers(0, 2),
        owner=owners,
        items=st.lists(clips, max_size=3),
        session_id=st.sampled_from([None, "one", "another"]),
        wishes=wishes,
    )
    def add(
        self,
        runs: Any,
        again: int | None,
        cut: int,
        max_tokens: int,
        items: list[Any] | None = None,
        wishes: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """A new request; its prompt often begins as another did, with what that generated."""
        if wishes:
            options["sampling"] = {"extra_args": wishes}
        prompt = [token for token, length in runs for _ in range(length)]
        if again is not None:
            before = self.seen[again % len(self.seen)]
            prompt = before[: 1 + cut % len(before)] + prompt[: cut % 5]
        prompt = prompt[: MAX_MODEL_LEN - 2]
        request = make_request(
            prompt,
            max_tokens=max_tokens,
            mm_features=features_of(items or [], len(prompt)),
            **options.pop("owner"),
            **options,
        )
        self.engine.add(request)

    @precondition(lambda self: self.live)
    @rule(which=pick, priority=st.integers(0, 2))
    def copycat(self, which: int, priority: int) -> None:
        """A request that goes on as a running one does: each block is computed twice."""
        model = self.live[which % len(self.live)]
        if model.num_tokens < MAX_MODEL_LEN:
            assert model.sampling_params is not None
            self.engine.add(
                make_request(
                    list(model.all_token_ids),
                    max_tokens=12,
                    seed=model.sampling_params.seed,
                    priority=priority,
                    mm_features=list(model.mm_features),
                    cache_salt=model.cache_salt,
                    lora_request=model.lora_request,
                )
            )

    # With steps in flight, vLLM loses a session whose piece ends after it was preempted: see
    # `test_sessions_while_steps_are_in_flight`.
    @precondition(lambda self: self.engine.depth == 1)
    @rule(
        runs=prompts,
        again=st.none() | pick,
        ends=st.booleans(),
        items=st.lists(clips, max_size=1),
        max_tokens=st.integers(1, 5),
    )
    def talk(
        self, runs: Any, again: int | None, ends: bool, items: list[Any], max_tokens: int
    ) -> None:
        """A session, whose input comes in pieces: its first one, another, or its end."""
        sessions = [request for request in self.live if request.resumable]
        if again is None or not sessions:
            self.add(runs, None, 0, max_tokens, items, seed=1, priority=0, owner={}, resumable=True)
            return
        session = sessions[again % len(sessions)]
        piece = [token for token, length in runs for _ in range(length)][:5]
        queued = session.streaming_queue or ()
        if ends or None in queued or len(queued) > 1 or session.num_tokens > 12:
            self.hang_up(session)
        else:
            self.engine.scheduler.add_request(
                make_request(
                    piece,
                    session.request_id,
                    seed=1,
                    max_tokens=max_tokens,
                    mm_features=features_of(items, len(piece)),
                    resumable=True,
                )
            )

    def hang_up(self, session: Request) -> None:
        if None not in (session.streaming_queue or ()):
            self.engine.scheduler.add_request(make_request([0], session.request_id))

    @precondition(lambda self: self.options.get("policy") == "priority")
    @rule(runs=prompts, others=st.lists(prompts, max_size=2), twin=st.booleans())
    def outrank(self, runs: Any, others: list[Any], twin: bool) -> None:
        """A request is running when others come that it has to give way to, at any moment."""
        self.add(runs, None, 0, 20, seed=1, priority=9, owner={})
        self.step(1)
        low = max(self.live, key=lambda request: (request.priority, request.arrival_time))
        if twin and low.num_tokens < MAX_MODEL_LEN:
            prompt = list(low.all_token_ids)
            self.engine.add(make_request(prompt, seed=1, priority=0, max_tokens=20))
        for other in others:
            self.add(other, None, 0, 20, seed=2, priority=0, owner={})
        self.step(6)

    @rule(number=st.integers(1, 10))
    def step(self, number: int) -> None:
        for _ in range(number):
            self.engine.step()
            self.check()

    @precondition(lambda self: self.live)
    @rule(which=pick)
    def abort(self, which: int) -> None:
        self.engine.abort(self.live[which % len(self.live)])

    @precondition(lambda self: self.engine.in_flight)
    @rule()
    def process_output(self) -> None:
        self.engine.process_output()

    @rule(running=st.booleans())
    def reset(self, running: bool) -> None:
        idle = self.engine.num_used_blocks == 0
        if running and (self.engine.held or any(request.resumable for request in self.live)):
            return  # vLLM gives up where somebody holds blocks without running
        done = self.engine.scheduler.reset_prefix_cache(reset_running_requests=running)
        assert done == (idle or running)
        if done:
            assert not list(self.engine.tree)

    @rule(block=pick)
    def hold(self, block: int) -> None:
        """As a connector does while it reads a block."""
        view = self.engine.pool.blocks[1 + block % (self.engine.pool.num_gpu_blocks - 1)]
        self.engine.pool.touch([view])
        self.engine.held.append(view)

    @precondition(lambda self: self.engine.held)
    @rule(which=pick)
    def let_go(self, which: int) -> None:
        view = self.engine.held.pop(which % len(self.engine.held))
        self.engine.pool.free_blocks([view])

    @rule(block=pick)
    def distrust(self, block: int) -> None:
        """As after a load that failed."""
        self.engine.manager.evict_blocks({1 + block % (self.engine.pool.num_gpu_blocks - 1)})

    @invariant()
    def check(self) -> None:
        if hasattr(self, "engine"):
            self.engine.check()
            self.seen += [list(request.all_token_ids) for request in self.live][-2:]
            del self.seen[:-8]

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        while self.engine.held:
            self.let_go(0)
        for request in self.live:
            if request.resumable:
                self.hang_up(request)
        self.engine.run()
        self.engine.check_idle()
        for request in self.engine.requests.values():
            assert request.is_finished()
            if request.status != RequestStatus.FINISHED_ABORTED and not request.resumable:
                self.check_tokens(request)

    def check_tokens(self, request: Request) -> None:
        """Whatever happened meanwhile, the client got what the model says, and all of it."""
        tokens = self.engine.tokens[request.request_id]
        assert tokens == self.engine.worker.continuation(request, len(tokens))
        limit = MAX_MODEL_LEN - len(request.prompt_token_ids or ())
        assert len(tokens) == min(request.max_tokens, limit)


MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "whole blocks": {"radix": {"token_granular": False}},
    "priority": {"policy": "priority"},
    "drafts": {"num_spec_tokens": 3},
    "events": {"kv_events": True, "radix": {"free_watermark": 0.3, "eviction": "slru"}},
    "async": {"async_scheduling": True},
    "async, executed late": {"async_scheduling": True},
    "async priority drafts": {
        "async_scheduling": True,
        "num_spec_tokens": 2,
        "policy": "priority",
    },
}


@pytest.mark.parametrize("mode", MODES)
def test_no_request_ever_reads_wrong_kv(mode: str) -> None:
    machine = type(mode, (SchedulerMachine,), {"options": MODES[mode], "late": "late" in mode})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=100,
            stateful_step_count=40,
            derandomize=True,
            deadline=None,
            print_blob=True,
        ),
    )


@pytest.mark.parametrize("late", [False, True], ids=["executed at once", "executed late"])
def test_sessions_while_steps_are_in_flight(late: bool) -> None:
    """vLLM may lose them; nobody else notices."""
    for seed in range(30):
        rng = random.Random(seed)
        scheduler = make_scheduler(
            num_blocks=1 + rng.randint(8, 12),
            max_num_seqs=4,
            max_model_len=MAX_MODEL_LEN,
            max_num_batched_tokens=rng.choice([8, 16, 40]),
            async_scheduling=True,
        )
        engine = Engine(scheduler, late=late)

        def piece(length: int, rng: random.Random = rng, **options: Any) -> Request:
            prompt = [rng.randrange(3) for _ in range(length)]
            items = [
                (rng.choice(("cat", "dog")), 0, rng.choice((3, 5)), rng.choice((None, "miaow")))
            ]
            return make_request(
                prompt,
                seed=1,
                max_tokens=rng.randint(1, 8),
                mm_features=features_of(items, length),
                **options,
            )

        sessions = [engine.add(piece(rng.randint(1, 6), resumable=True)) for _ in range(3)]
        others = [engine.add(piece(rng.randint(1, 6))) for _ in range(3)]
        for _ in range(60):
            engine.step()
            engine.check()
            session = rng.choice(sessions)
            is_listening = len(session.streaming_queue or ()) < 2 and session.num_tokens < 14
            if session.request_id in scheduler.requests and is_listening and rng.random() < 0.2:
                scheduler.add_request(piece(3, request_id=session.request_id, resumable=True))
        for other in others:
            tokens = engine.tokens[other.request_id]
            if other.request_id in engine.finished:
                assert len(tokens) == other.max_tokens
            assert tokens == engine.worker.continuation(other, len(tokens))
