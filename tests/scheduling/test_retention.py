# SPDX-License-Identifier: Apache-2.0
"""What requests may ask for the prefix that they leave behind."""

from typing import Any

import pytest
from vllm.v1.request import Request

from vllm_radix.scheduling import retention
from vllm_radix.scheduling.retention import Wishes, wishes_of
from vllm_radix.scheduling.scheduler import MAX_PINNED_SHARE

from .engine import Engine
from .factory import make_request, make_scheduler


def asking(**extra: Any) -> Request:
    return make_request([1] * 4, sampling={"extra_args": extra})


@pytest.mark.parametrize(
    ("extra", "wishes"),
    [
        ({}, Wishes()),
        ({"other": "x"}, Wishes()),
        ({"radix_priority": -3}, Wishes(priority=-3)),
        ({"radix_priority": "7", "radix_ttl_s": "1.5"}, Wishes(priority=7, ttl_s=1.5)),
        ({"radix_pin": True}, Wishes(pin=True)),
        ({"radix_pin": 1}, Wishes(pin=True)),
        ({"radix_pin": "true"}, Wishes(pin=True)),
        ({"radix_pin": "False"}, Wishes()),
        ({"radix_pin": 0, "radix_ttl_s": 60}, Wishes(ttl_s=60.0)),
    ],
)
def test_wishes_are_read(extra: dict[str, Any], wishes: Wishes) -> None:
    assert wishes_of(asking(**extra)) == wishes


@pytest.mark.parametrize(
    ("extra", "complaint"),
    [
        ({"radix_priority": 1.5}, "radix_priority=1.5 is ignored: it must be an integer"),
        ({"radix_priority": "high"}, "radix_priority='high' is ignored"),
        ({"radix_priority": 1 << 40}, "is ignored: it must be an integer between -1073741824"),
        ({"radix_priority": True}, "radix_priority=True is ignored"),
        ({"radix_ttl_s": 0}, "radix_ttl_s=0 is ignored: it must be a positive number of seconds"),
        ({"radix_ttl_s": float("nan")}, "radix_ttl_s=nan is ignored"),
        ({"radix_ttl_s": [1]}, r"radix_ttl_s=[1] is ignored"),
        ({"radix_pin": "maybe"}, "radix_pin='maybe' is ignored: it must be true or false"),
    ],
)
def test_invalid_wishes_are_ignored_and_said_so(
    extra: dict[str, Any], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(
        retention.logger, "warning_once", lambda text, *args: lines.append(text % args)
    )
    assert wishes_of(asking(**extra)) == Wishes()
    assert len(lines) == 1 and complaint in lines[0]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Server:
    """A pool of 15 blocks of 4 tokens, and prompts that each leave two of them behind."""

    def __init__(self, **radix: Any) -> None:
        self.engine = Engine(make_scheduler(num_blocks=1 + 15, radix=radix), vocab_size=10**6)
        self.clock = Clock()
        admission = self.engine.scheduler.admission  # type: ignore[attr-defined]
        admission.clock = self.clock

    def prompt(self, number: int) -> list[int]:
        return [number] * 8

    def serve(self, *numbers: int, **extra: Any) -> None:
        for number in numbers:
            self.engine.generate(
                make_request(
                    self.prompt(number), max_tokens=1, sampling={"extra_args": extra or None}
                )
            )
            self.engine.check()

    def is_cached(self, number: int) -> bool:
        manager = self.engine.scheduler.kv_cache_manager
        return manager.get_computed_blocks(make_request([*self.prompt(number), 0]))[1] == 8

    def cached(self, *numbers: int) -> list[int]:
        return [number for number in numbers if self.is_cached(number)]


def test_the_least_important_goes_first() -> None:
    server = Server()
    server.serve(1, radix_priority=-1)
    server.serve(2)
    server.serve(3, radix_priority=1)
    server.serve(4)
    server.serve(*range(10, 15))
    assert server.cached(1, 2, 3, 4) == [1, 4]


@pytest.mark.parametrize("eviction", ["lru", "lfu", "slru", "priority"])
def test_importance_comes_before_any_policy(eviction: str) -> None:
    server = Server(eviction=eviction)
    server.serve(1, radix_priority=-1)
    server.serve(2, 2, 2)
    server.serve(*range(10, 20))
    assert server.is_cached(1)


def test_with_the_policy_of_that_name_a_request_may_differ_from_its_priority() -> None:
    for extra, is_cached in [({}, False), ({"radix_priority": -1}, True)]:
        server = Server(eviction="priority")
        server.serve(1, **extra)
        server.serve(*range(10, 20))
        assert server.is_cached(1) == is_cached


def test_a_pinned_prefix_stays() -> None:
    server = Server()
    server.serve(1, radix_pin=True)
    server.serve(2)
    server.serve(*range(10, 30))
    assert server.cached(1, 2) == [1]


@pytest.mark.parametrize("schedule", ["fcfs", "affinity"])
def test_a_pin_costs_nobody_their_memory(schedule: str) -> None:
    server = Server(schedule=schedule)
    server.serve(1, radix_pin=True)
    long = make_request([99] * 55, max_tokens=4)
    server.engine.generate(long)
    assert long.num_preemptions == 0
    assert not server.is_cached(1)


def test_pins_have_a_quota_and_the_oldest_give_way() -> None:
    quota = int(MAX_PINNED_SHARE * 16)
    assert quota == 4
    server = Server()
    server.serve(1, 2, 3, radix_pin=True)
    server.serve(*range(10, 30))
    assert server.cached(1, 2, 3) == [2, 3]


def test_a_prefix_beyond_the_quota_cannot_be_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(
        retention.logger, "warning_once", lambda text, *args: lines.append(text % args)
    )
    server = Server()
    server.serve(1, radix_pin=True)
    server.engine.generate(
        make_request([7] * 20, max_tokens=1, sampling={"extra_args": {"radix_pin": True}})
    )
    assert lines == [
        "vllm-radix: radix_pin is ignored for a prefix of 5 blocks: all pins together may have 4."
    ]
    server.serve(*range(10, 30))
    assert server.is_cached(1)


def test_what_outlived_its_time_goes_first() -> None:
    server = Server()
    server.serve(1)
    server.serve(2, radix_ttl_s=10)
    server.serve(3)
    server.clock.now = 11.0
    server.serve(4)
    # One more than there is room for.
    server.serve(*range(10, 14))
    assert server.cached(1, 2, 3, 4) == [1, 3, 4]


def test_a_use_prolongs_a_life() -> None:
    server = Server()
    server.serve(1, radix_ttl_s=10)
    server.clock.now = 8.0
    server.serve(1)
    server.clock.now = 11.0
    server.serve(*range(10, 15))
    assert server.is_cached(1)
    server.clock.now = 30.0
    server.serve(15)
    server.serve(16)
    assert not server.is_cached(1)


def test_a_pin_ends_with_its_time() -> None:
    server = Server()
    server.serve(1, radix_pin=True, radix_ttl_s=10)
    server.serve(*range(10, 20))
    assert server.is_cached(1)
    server.clock.now = 11.0
    server.serve(20, 21)
    assert not server.is_cached(1)
