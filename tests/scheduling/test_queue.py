# SPDX-License-Identifier: Apache-2.0
"""The order of the waiting queue, and its bound."""

import math
import random
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.v1.request import Request, RequestStatus

from vllm_radix.scheduling import lane
from vllm_radix.scheduling.lane import Waiting
from vllm_radix.scheduling.probe import EncoderCacheProbe
from vllm_radix.scheduling.queue import PrefixAffinityQueue

from .factory import image, make_request


@dataclass(frozen=True)
class Prefix:
    """What the probe of these tests finds."""

    num_tokens: int
    node: str


NOTHING = Prefix(0, "root")


class Held:
    """A gate that holds the requests that a test names."""

    is_open = False

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.admitted: list[str] = []

    def is_held(self, waiting: Waiting) -> bool:
        return waiting.request.request_id in self.names

    def on_admitted(self, waiting: Waiting) -> None:
        self.admitted.append(waiting.request.request_id)


class Bench:
    """A queue, with what is cached of each request as the test says."""

    def __init__(self, patience: float = 1000.0, by_priority: bool = False) -> None:
        self.cached: dict[str, Prefix | None] = {}
        self.lacks: dict[str, object] = {}
        self.finds: list[str] = []
        self.found: dict[str, Prefix | None] = {}
        self.encoder = SimpleNamespace(cached=set())
        self.gate = Held()
        self.queue = PrefixAffinityQueue(
            self,
            self.gate,
            EncoderCacheProbe(lambda: self.encoder),
            patience=patience,
            by_priority=by_priority,
        )

    def find(self, request: Request) -> Prefix | None:
        name = request.request_id
        self.finds.append(name)
        self.found[name] = self.cached.get(name, NOTHING)
        return self.found[name]

    def state(self, node: str) -> object:
        assert node is not None
        return object()

    def lacking(self, request: Request, prefix: Prefix) -> object:
        # What one request has cached is independent of the others in most of these tests.
        return self.lacks.get(request.request_id, request.request_id)

    def cohort(self, prefix: Prefix) -> tuple[str, int]:
        return prefix.node, prefix.num_tokens

    def changed(self, node: str, before: object, lacking: Iterable[Hashable]) -> list[Hashable]:
        new = [n for n, found in self.found.items() if self.cached.get(n, NOTHING) != found]
        return [lacks for lacks in lacking if any(self.lacks.get(n, n) == lacks for n in new)]

    def num_reused(self, prefix: Prefix) -> int:
        return prefix.num_tokens

    def add(self, name: str, cached: Prefix | None = NOTHING, **options: Any) -> Request:
        self.cached[name] = cached
        request = make_request([1] * 9, name, **options)
        self.queue.add_request(request)
        return request

    def step(self) -> None:
        self.queue.start_step()

    def wait(self) -> None:
        """All that are in the queue now are left waiting by a step."""
        self.step()
        self.step()

    def admit(self) -> str:
        assert self.queue
        request = self.queue.peek_request()
        assert self.queue.pop_request() is request
        request.status = RequestStatus.RUNNING
        return request.request_id

    def skip(self) -> Request:
        """As the scheduler does with what it may not run in this step."""
        return self.queue.pop_request()

    def admit_while_warm_ones_arrive(self, number: int) -> list[str]:
        """Another request with a cached prefix arrives before each admission."""
        order = []
        for count in range(number):
            self.add(f"warm {count}", prefix(4))
            self.wait()
            order.append(self.admit())
            self.step()
        return order

    def admit_all(self) -> list[str]:
        order = []
        while self.queue:
            order.append(self.admit())
        return order


def prefix(num_tokens: int, node: str = "a") -> Prefix:
    return Prefix(num_tokens, node)


class TestOrder:
    def test_who_need_not_wait_come_in_the_order_of_arrival(self) -> None:
        bench = Bench()
        bench.step()
        for name, length in [("a", 0), ("b", 8), ("c", 4)]:
            bench.add(name, prefix(length))
        bench.step()
        assert bench.admit_all() == ["a", "b", "c"]

    def test_with_nothing_cached_the_order_is_that_of_arrival(self) -> None:
        bench = Bench()
        for name in "abc":
            bench.add(name)
        bench.wait()
        assert bench.admit_all() == ["a", "b", "c"]

    def test_the_longest_cached_prefix_first(self) -> None:
        bench = Bench()
        for name, length in [("a", 0), ("b", 4), ("c", 8), ("d", 4)]:
            bench.add(name, prefix(length))
        bench.wait()
        assert bench.admit_all() == ["c", "b", "d", "a"]

    def test_who_arrives_while_others_wait_is_ranked_at_once(self) -> None:
        bench = Bench()
        bench.add("a")
        bench.wait()
        bench.add("b", prefix(4))
        assert bench.admit_all() == ["b", "a"]

    def test_of_equal_length_those_that_end_in_one_node_together(self) -> None:
        bench = Bench()
        for name, node in [("a", "x"), ("b", "y"), ("c", "x"), ("d", "z"), ("e", "y")]:
            bench.add(name, prefix(4, node))
        bench.wait()
        assert bench.admit_all() == ["a", "c", "b", "e", "d"]

    def test_of_equal_length_those_whose_images_are_encoded_first(self) -> None:
        bench = Bench()
        for name, length, item in [("a", 0, "cat"), ("b", 0, "dog"), ("c", 4, "cat"), ("d", 0, "")]:
            features = [image(item, 5, 4)] if item else None
            bench.add(name, prefix(length), mm_features=features)
        bench.wait()
        bench.encoder.cached = {"dog"}
        bench.step()
        assert bench.admit_all() == ["c", "b", "d", "a"]

    def test_what_is_encoded_may_change_while_they_wait(self) -> None:
        bench = Bench()
        for name in ("cat", "dog", "cow", "cat again"):
            bench.add(name, mm_features=[image(name[:3], 1, 4), image("all", 5, 4)])
        orders = []
        for cached in ({"cow"}, {"dog", "cow"}, {"dog", "all"}, {"cat", "all"}, set()):
            bench.encoder.cached = cached
            bench.wait()
            orders.append([entry.request.request_id for entry in bench.queue.ordered()])
        assert orders == [
            ["cow", "cat", "dog", "cat again"],
            ["dog", "cow", "cat", "cat again"],
            ["dog", "cat", "cow", "cat again"],
            ["cat", "cat again", "dog", "cow"],
            ["cat", "dog", "cow", "cat again"],
        ]
        bench.admit_all()
        assert not bench.queue._lane(0)._having

    def test_what_comes_and_goes_between_two_looks_counts_for_nothing(self) -> None:
        bench = Bench()
        bench.add("other", mm_features=[image("other", 1, 4)])
        bench.wait()
        bench.encoder.cached = {"dog"}
        for name in ("cat", "dog"):
            bench.add(name, mm_features=[image(name, 1, 4)])
        bench.encoder.cached = set()
        bench.step()
        assert bench.admit_all() == ["other", "cat", "dog"]

    def test_a_priority_that_is_not_next_keeps_up(self) -> None:
        bench = Bench(by_priority=True)
        bench.add("first", priority=0)
        bench.encoder.cached = {"dog"}
        for name in ("cat", "dog"):
            bench.add(name, priority=1, mm_features=[image(name, 1, 4)])
        bench.wait()
        bench.encoder.cached = set()
        bench.wait()
        assert bench.admit() == "first"
        bench.step()
        assert bench.admit_all() == ["cat", "dog"]

    def test_a_session_may_get_more_images_while_it_waits(self) -> None:
        bench = Bench()
        bench.add("other", mm_features=[image("dog", 1, 4)])
        session = bench.add("session", mm_features=[image("cat", 1, 4)])
        bench.encoder.cached = {"cat"}

        def order() -> list[str]:
            return [entry.request.request_id for entry in bench.queue.ordered()]

        bench.wait()
        assert order() == ["session", "other"]
        session.mm_features += [image("cow", 5, 4), image("calf", 9, 4)]
        bench.queue.look_again_at(session)
        assert order() == ["other", "session"]
        bench.encoder.cached = {"cow", "calf", "cat"}
        bench.step()
        assert order() == ["session", "other"]
        # vLLM may change it first and say so later.
        session.mm_features.append(image("bull", 13, 4))
        bench.encoder.cached = {"bull"}
        bench.step()
        assert bench.admit_all() == ["other", "session"]
        assert not bench.queue._lane(0)._having
        bench.queue.look_again_at(make_request([1], "unknown"))

    def test_who_go_on_as_one_that_was_admitted_follow_it(self) -> None:
        """Nothing is cached, but it will be as soon as the first of them runs."""
        bench = Bench()
        bench.lacks = {"a": 1, "c": 1}
        for name in "abc":
            bench.add(name)
        bench.wait()
        assert bench.admit() == "a"
        bench.cached["c"] = prefix(4)
        assert bench.admit_all() == ["c", "b"]

    def test_who_go_on_otherwise_are_not_looked_up_again(self) -> None:
        bench = Bench()
        bench.lacks = {"a": 1, "c": 1}
        for name in "abcdefg":
            bench.add(name)
        bench.wait()
        bench.finds.clear()
        assert bench.admit() == "a"
        assert bench.queue.peek_request().request_id == "b"
        assert bench.finds == ["c"]
        bench.step()
        assert bench.queue.peek_request().request_id == "b"
        assert bench.finds == ["c"]

    def test_all_are_looked_up_again_if_the_cache_means_something_else(self) -> None:
        bench = Bench()
        bench.add("a", prefix(4))
        bench.add("b", prefix(2))
        bench.wait()
        assert bench.queue.peek_request().request_id == "a"
        bench.cached["a"] = NOTHING
        bench.queue.look_again()
        assert bench.admit_all() == ["b", "a"]

    def test_the_oldest_are_ordered(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Newcomers wait to become so, however much of them is cached; who was skipped is."""
        monkeypatch.setattr(lane, "WINDOW", 3)
        bench = Bench()
        for name in "abcd":
            bench.add(name)
        bench.add("e", prefix(8))
        bench.wait()
        assert bench.admit() == "a"
        bench.add("f", prefix(9))
        skipped = bench.skip()
        assert skipped.request_id == "b"
        assert bench.admit() == "c"
        bench.queue.prepend_request(skipped)
        bench.step()
        assert bench.admit() == "e"
        bench.step()
        assert bench.admit_all() == ["f", "b", "d"]

    def test_what_changed_is_seen_in_the_next_step(self) -> None:
        bench = Bench()
        bench.add("a", prefix(4))
        bench.add("b", prefix(2))
        bench.wait()
        bench.cached["a"] = NOTHING
        bench.step()
        assert bench.admit_all() == ["b", "a"]

    def test_a_request_that_may_not_read_the_cache_has_nothing_cached(self) -> None:
        bench = Bench()
        bench.add("a", None)
        bench.add("b", prefix(2))
        bench.wait()
        assert bench.admit_all() == ["b", "a"]

    def test_resumed_requests_come_first_the_last_preempted_ahead(self) -> None:
        bench = Bench()
        bench.add("a", prefix(8))
        bench.wait()
        for name in "xy":
            request = make_request([1] * 9, name)
            request.status = RequestStatus.PREEMPTED
            bench.queue.prepend_request(request)
        assert [request.request_id for request in bench.queue] == ["y", "x", "a"]
        assert bench.admit_all() == ["y", "x", "a"]


class TestPriority:
    def test_only_if_the_scheduler_goes_by_it(self) -> None:
        for by_priority, order in [(True, ["c", "b", "a"]), (False, ["a", "b", "c"])]:
            bench = Bench(by_priority=by_priority)
            for name, priority in [("a", 2), ("b", 1), ("c", 0)]:
                bench.add(name, priority=priority)
            assert bench.admit_all() == order

    def test_prefixes_count_within_one_priority(self) -> None:
        bench = Bench(by_priority=True)
        bench.add("a", prefix(8), priority=1)
        bench.add("b", prefix(2), priority=0)
        bench.add("c", prefix(4), priority=0)
        bench.wait()
        assert bench.admit_all() == ["c", "b", "a"]

    def test_a_more_important_one_goes_before_a_resumed_one(self) -> None:
        bench = Bench(by_priority=True)
        resumed = make_request([1] * 9, "resumed", priority=1)
        resumed.status = RequestStatus.PREEMPTED
        bench.queue.prepend_request(resumed)
        bench.add("a", priority=0)
        bench.add("b", priority=1)
        assert bench.admit_all() == ["a", "resumed", "b"]

    def test_the_next_priority_is_up_to_date_when_its_turn_comes(self) -> None:
        """In the middle of a step as well."""
        bench = Bench(by_priority=True)
        bench.add("a", priority=0)
        bench.add("b", prefix(4), priority=1)
        bench.add("c", prefix(2), priority=1)
        bench.wait()
        bench.cached["b"] = NOTHING
        bench.step()
        assert bench.admit_all() == ["a", "c", "b"]


class TestInterface:
    """What vLLM's scheduler does with a queue."""

    def test_an_empty_queue(self) -> None:
        empty = Bench().queue
        assert not empty and len(empty) == 0 and list(empty) == []
        for call in (empty.peek_request, empty.pop_request):
            with pytest.raises(IndexError):
                call()

    def test_a_skipped_request_comes_back_to_its_place(self) -> None:
        bench = Bench()
        for name in "abc":
            bench.add(name)
        bench.step()
        skipped = [bench.skip(), bench.skip()]
        assert bench.admit() == "c"
        bench.queue.prepend_requests(skipped)
        assert len(bench.queue) == 2
        bench.step()
        assert bench.admit_all() == ["a", "b"]

    def test_a_skipped_request_is_no_admission(self) -> None:
        bench = Bench()
        bench.add("a")
        bench.step()
        bench.queue.prepend_requests([bench.skip()])
        bench.step()
        assert bench.gate.admitted == []
        assert bench.admit_all() == ["a"]
        bench.step()
        assert bench.gate.admitted == ["a"]

    @pytest.mark.parametrize(
        "status",
        [
            RequestStatus.RUNNING,
            RequestStatus.WAITING_FOR_REMOTE_KVS,
            RequestStatus.FINISHED_LENGTH_CAPPED,
        ],
    )
    def test_whoever_does_not_come_back_was_admitted(self, status: RequestStatus) -> None:
        """It runs, or its KV is under way, or it has even finished in its first step."""
        bench = Bench()
        request = bench.add("a")
        bench.step()
        bench.admit()
        request.status = status
        bench.step()
        assert bench.gate.admitted == ["a"]
        bench.step()
        assert bench.gate.admitted == ["a"]

    def test_who_was_admitted_before_does_not_queue_again(self) -> None:
        """Its KV was to come from elsewhere and did not: it goes first, and counts once."""
        bench = Bench()
        request = bench.add("a")
        bench.add("b", prefix(8))
        bench.step()
        bench.admit()
        request.status = RequestStatus.WAITING_FOR_REMOTE_KVS
        bench.wait()
        request.status = RequestStatus.WAITING
        bench.queue.prepend_request(request)
        bench.step()
        assert bench.admit_all() == ["a", "b"]

    def test_who_comes_twice_is_here_once(self) -> None:
        """As a streaming session that was preempted and gets its next input."""
        bench = Bench()
        session = make_request([1] * 9, "session")
        session.status = RequestStatus.PREEMPTED
        bench.queue.prepend_request(session)
        session.status = RequestStatus.WAITING
        bench.queue.add_request(session)
        assert len(bench.queue) == 1
        bench.queue.remove_requests([session])
        assert not bench.queue and len(bench.queue) == 0 and list(bench.queue) == []

    def test_where_nobody_is_ever_held_nothing_is_looked_up_before_it_is_needed(self) -> None:
        bench = Bench()
        bench.gate.is_open = True
        for name in "abc":
            bench.add(name)
        bench.wait()
        bench.cached["b"] = prefix(4)
        bench.finds.clear()
        bench.step()
        assert bench.queue
        assert bench.finds == []
        assert bench.admit_all() == ["b", "a", "c"]

    def test_removed_requests_are_gone_wherever_they_were(self) -> None:
        bench = Bench()
        requests = [bench.add(name) for name in "abcd"]
        resumed = make_request([1] * 9, "resumed")
        resumed.status = RequestStatus.PREEMPTED
        bench.queue.prepend_request(resumed)
        stranger = make_request([1] * 9, "stranger")
        bench.queue.remove_requests([requests[1], resumed, stranger])
        bench.queue.remove_request(requests[3])
        assert [request.request_id for request in bench.queue] == ["a", "c"]
        assert bench.admit_all() == ["a", "c"]

    def test_held_requests_are_in_the_queue_but_not_given_out(self) -> None:
        bench = Bench()
        for name in "abc":
            bench.add(name)
        bench.gate.names = {"a", "c"}
        bench.step()
        assert bench.admit_all() == ["b"]
        assert not bench.queue and len(bench.queue) == 2
        bench.gate.names.clear()
        bench.step()
        assert bench.admit_all() == ["a", "c"]

    def test_resumed_requests_are_not_held(self) -> None:
        bench = Bench()
        resumed = make_request([1] * 9, "resumed")
        resumed.status = RequestStatus.PREEMPTED
        bench.queue.prepend_request(resumed)
        bench.gate.names = {"resumed"}
        assert bench.admit_all() == ["resumed"]


class TestLate:
    """A request is late after twice as many admissions as requests waited meanwhile, on average."""

    def test_the_oldest_is_overtaken_twice_as_often_as_requests_wait(self) -> None:
        bench = Bench()
        bench.add("cold")
        # Two wait whenever one is admitted.
        assert bench.admit_while_warm_ones_arrive(9).index("cold") == 5

    def test_the_longer_the_queue_the_later(self) -> None:
        bench = Bench()
        bench.add("cold")
        for number in range(8):
            bench.add(f"early {number}", prefix(4))
        assert bench.admit_while_warm_ones_arrive(30).index("cold") == 21

    def test_in_a_burst_nobody_is_late(self) -> None:
        bench = Bench()
        for number in range(300):
            bench.add(f"{number}", prefix(number % 3, "abc"[number % 3]))
        bench.wait()
        assert bench.admit_all() == [
            f"{number}" for rest in (2, 1, 0) for number in range(300) if number % 3 == rest
        ]

    def test_a_late_request_may_be_held(self) -> None:
        bench = Bench()
        bench.add("cold")
        bench.gate.names = {"cold"}
        for number in range(12):
            bench.add(f"warm {number}", prefix(4))
            bench.wait()
            assert bench.admit() == f"warm {number}"
        bench.gate.names = set()
        bench.add("another", prefix(4))
        bench.wait()
        assert bench.admit() == "cold"

    def test_who_is_late_goes_though_an_older_one_is_held(self) -> None:
        bench = Bench()
        bench.add("large")
        bench.add("cold")
        bench.gate.names = {"large"}
        # Three wait whenever one is admitted.
        order = bench.admit_while_warm_ones_arrive(12)
        assert order.index("cold") == 7
        assert "large" not in order

    def test_deadlines_and_resumed_requests_come_before(self) -> None:
        bench = Bench(patience=2.0)
        bench.add("cold")
        for number in range(2):
            bench.add(f"warm {number}", prefix(4))
            bench.wait()
            bench.admit()
        resumed = make_request([1] * 9, "resumed")
        resumed.status = RequestStatus.PREEMPTED
        bench.queue.prepend_request(resumed)
        bench.wait()
        assert bench.admit_all()[0] == "resumed"

    def test_who_is_skipped_waits_on(self) -> None:
        bench = Bench()
        bench.add("cold")
        order = []
        for number in range(9):
            bench.add(f"warm {number}", prefix(4))
            bench.wait()
            order.append(bench.admit())
            if bench.queue.peek_request().request_id == "cold":
                bench.queue.prepend_request(bench.skip())
        assert order.index("cold") == 5

    def test_lanes_count_for_themselves(self) -> None:
        bench = Bench(by_priority=True)
        bench.add("cold", priority=1)
        bench.add("warm", prefix(4), priority=1)
        for number in range(20):
            bench.add(f"urgent {number}", priority=0)
            bench.wait()
            assert bench.admit() == f"urgent {number}"
        assert bench.admit() == "warm"


class TestBound:
    def test_a_patience_of_one_is_first_come_first_served(self) -> None:
        bench = Bench(patience=1.0)
        rng = random.Random(0)
        names = [f"{number}" for number in range(50)]
        for name in names:
            bench.add(name, prefix(rng.randrange(8)))
        bench.wait()
        assert bench.admit_all() == names

    def test_a_cold_request_among_warm_ones(self) -> None:
        """One is ahead of it, so it is the sixth at the latest."""
        bench = Bench(patience=3.0)
        bench.add("old", prefix(8))
        bench.add("cold")
        bench.wait()
        order = []
        for number in range(20):
            bench.add(f"warm {number}", prefix(4))
            order.append(bench.admit())
            bench.step()
        assert order.index("cold") == 5

    def test_a_request_that_was_skipped_alone_keeps_its_deadline(self) -> None:
        bench = Bench(patience=2.0)
        for number in range(20):
            bench.add(f"{number}")
            bench.admit()
            bench.step()
        bench.add("skipped")
        bench.step()
        bench.queue.prepend_requests([bench.skip()])
        order = []
        for number in range(6):
            bench.add(f"warm {number}", prefix(4))
            bench.step()
            order.append(bench.admit())
        assert order[1] == "skipped"

    def test_those_that_are_skipped_make_nobody_else_late(self) -> None:
        """Ten wait for their adapter when another one comes: it may be the 22nd."""
        bench = Bench(patience=2.0)
        blocked = [f"blocked {number}" for number in range(10)]
        for name in blocked:
            bench.add(name)
        bench.add("cold")
        bench.gate.names = {"cold"}
        bench.wait()
        order = []
        for number in range(40):
            bench.add(f"warm {number}", prefix(4))
            skipped = []
            while bench.queue.peek_request().request_id in blocked and number < 20:
                skipped.append(bench.skip())
            order.append(bench.admit())
            bench.queue.prepend_requests(skipped)
            bench.step()
        assert order.index("cold") < 22

    def test_an_urgent_request_is_not_held(self) -> None:
        bench = Bench(patience=2.0)
        bench.add("cold")
        bench.gate.names = {"cold"}
        bench.wait()
        order = []
        for number in range(4):
            bench.add(f"warm {number}", prefix(4))
            order.append(bench.admit())
        assert order[1] == "cold"

    @settings(max_examples=300, deadline=None)
    @given(
        patience=st.sampled_from([1.0, 1.5, 2.0, 3.0, 8.0]),
        actions=st.lists(
            st.one_of(
                st.tuples(st.just("arrive"), st.integers(0, 8), st.sampled_from("abc")),
                st.tuples(st.just("admit"), st.integers(0, 2), st.just("")),
                st.tuples(st.just("preempt"), st.integers(0, 99), st.just("")),
                st.tuples(st.just("step"), st.just(0), st.just("")),
                st.tuples(st.just("skip"), st.just(0), st.just("")),
                st.tuples(st.just("abort"), st.integers(0, 99), st.just("")),
                st.tuples(st.just("hold"), st.integers(0, 99), st.just("")),
                st.tuples(st.just("evict"), st.integers(0, 99), st.just("")),
            ),
            max_size=120,
        ),
    )
    def test_nobody_is_admitted_later_than_promised(
        self, patience: float, actions: list[tuple[str, int, str]]
    ) -> None:
        """With n ahead at its arrival, after at most patience * (n + 1) admissions.

        Whatever becomes of those that are admitted; that resumed ones go first does not count. Who
        is skipped may be late, and nobody else for its sake.
        """
        bench = Bench(patience=patience)
        running: list[Request] = []
        finishing: list[Request] = []
        waiting: dict[str, Request] = {}
        latest: dict[str, float] = {}
        skipped: list[Request] = []
        num_admitted = 0

        def admit(outcome: int = 0) -> None:
            nonlocal num_admitted
            if not bench.queue:
                return
            request = bench.queue.peek_request()
            name = bench.admit()
            if name in waiting:
                num_admitted += 1
                del waiting[name]
                assert num_admitted <= latest.pop(name, math.inf)
            if outcome == 1:
                request.status = RequestStatus.WAITING_FOR_REMOTE_KVS
            else:
                (finishing if outcome == 2 else running).append(request)

        def put_back() -> None:
            while skipped:
                bench.queue.prepend_request(skipped.pop())

        def step() -> None:
            put_back()
            for request in finishing:
                request.status = RequestStatus.FINISHED_STOPPED
            finishing.clear()
            bench.step()

        for number, (action, value, node) in enumerate(actions):
            if action not in ("admit", "skip"):
                # Nothing else happens while vLLM goes through the queue.
                put_back()
            names = list(waiting)
            name = names[value % len(names)] if names else ""
            if action == "arrive":
                latest[f"{number}"] = num_admitted + patience * (len(waiting) + 1)
                waiting[f"{number}"] = bench.add(f"{number}", prefix(value, node))
            elif action == "admit":
                admit(value)
            elif action == "step":
                step()
            elif action == "preempt" and running:
                # vLLM preempts before it admits.
                step()
                preempted = running.pop(value % len(running))
                preempted.status = RequestStatus.PREEMPTED
                bench.queue.prepend_request(preempted)
            elif action == "skip" and bench.queue:
                skipped.append(bench.skip())
                latest.pop(skipped[-1].request_id, None)
            elif names and action == "abort":
                bench.queue.remove_request(waiting.pop(name))
                latest.pop(name, None)
            elif names and action == "hold":
                bench.gate.names ^= {name}
            elif names and action == "evict":
                bench.cached[name] = NOTHING
        bench.gate.names.clear()
        step()
        assert {request.request_id for request in bench.queue} >= waiting.keys()
        while waiting:
            admit()
