# SPDX-License-Identifier: Apache-2.0
"""What requests may ask for the prefix that they leave behind."""

from typing import Any

import pytest
from vllm.v1.request import Request

from vllm_radix.scheduling import retention
from vllm_radix.scheduling.retention import Retention, Wishes, wishes_of
from vllm_radix.scheduling.scheduler import MAX_PINNED_SHARE
from vllm_radix.tree import Key, Namespace
from vllm_radix.tree.eviction import EXPIRED

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


@pytest.fixture
def complaints(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(retention, "_complaints", set())
    monkeypatch.setattr(retention.logger, "warning", lambda text, *args: lines.append(text % args))
    return lines


@pytest.mark.parametrize(
    ("extra", "complaint"),
    [
        ({"radix_priority": 1.5}, "radix_priority = 1.5 is ignored: it must be an integer"),
        ({"radix_priority": "high"}, "radix_priority = 'high' is ignored"),
        ({"radix_priority": 1 << 40}, "it must be an integer from -1073741824 to 1073741824."),
        ({"radix_priority": True}, "radix_priority = True is ignored"),
        ({"radix_ttl_s": 0}, "radix_ttl_s = 0 is ignored: it must be a positive number of seconds"),
        ({"radix_ttl_s": float("nan")}, "radix_ttl_s = nan is ignored"),
        ({"radix_ttl_s": [1]}, "radix_ttl_s = [1] is ignored"),
        ({"radix_ttl_s": {"a": [1]}}, "radix_ttl_s = {'a': [1]} is ignored"),
        ({"radix_pin": [True]}, "radix_pin = [True] is ignored: it must be true or false"),
        ({"radix_pin": "maybe" * 1000}, "radix_pin = 'maybemaybe"),
        ({"radix_%s": True}, "radix_%s is not known"),
        ({"radix_pinn": True}, "radix_pinn is not known: there are radix_pin, radix_priority, "),
    ],
)
def test_invalid_wishes_are_ignored_and_said_so_once(
    extra: dict[str, Any], complaint: str, complaints: list[str]
) -> None:
    for _ in range(3):
        assert wishes_of(asking(**extra)) == Wishes()
    (line,) = complaints
    assert complaint in line and len(line) < 300


def test_clients_cannot_fill_the_log(complaints: list[str]) -> None:
    for number in range(1000):
        wishes_of(asking(**{f"radix_{number}": 1, "radix_ttl_s": f"{number} s"}))
    assert len(complaints) == 100


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

    @property
    def retention(self) -> Retention:
        return self.engine.scheduler.retention  # type: ignore[attr-defined,no-any-return]

    def prompt(self, number: int) -> list[int]:
        return [number] * 8

    def serve(self, *numbers: int, **extra: Any) -> None:
        for number in numbers:
            self.ask(self.prompt(number), **extra)

    def ask(self, prompt: list[int], **extra: Any) -> None:
        self.engine.generate(
            make_request(prompt, max_tokens=1, sampling={"extra_args": extra or None})
        )
        self.engine.check()

    def flood(self) -> None:
        """Prompts that nobody asks for again, more than there is room for."""
        self.serve(*range(100, 120))

    def fill(self, num_blocks: int) -> None:
        """One of so many blocks."""
        self.ask([999] * 4 * num_blocks)

    def evict(self, num_blocks: int) -> None:
        self.engine.pool.reclaim(self.engine.tree.evict(num_blocks))
        self.engine.check()

    def num_cached(self, prompt: list[int]) -> int:
        """How many tokens of a prompt are found."""
        tree = self.engine.tree
        return tree.match(Key.of(prompt, Namespace())).num_tokens

    def is_cached(self, number: int) -> bool:
        return self.num_cached(self.prompt(number)) == 8

    def cached(self, *numbers: int) -> list[int]:
        return [number for number in numbers if self.is_cached(number)]

    def num_pinned_blocks(self) -> int:
        """What all pins together cover."""
        pinned = self.retention.pinned(self.clock.now)
        blocks: set[int] = set()
        for match in pinned:
            blocks.update(self.engine.tree.path_blocks(match.node, -(-match.num_tokens // 4)))
        return len(blocks)


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


def test_a_prefix_beyond_the_quota_cannot_be_pinned(complaints: list[str]) -> None:
    server = Server()
    server.serve(1, radix_pin=True)
    server.engine.generate(
        make_request([7] * 20, max_tokens=1, sampling={"extra_args": {"radix_pin": True}})
    )
    assert complaints == [
        "vllm-radix: radix_pin is ignored for a prefix of 5 blocks: all pins together may have 4. "
        "This is said once."
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


SYSTEM = [1] * 8


class TestPinnedPrefixThatIsUsed:
    @pytest.mark.parametrize("token_granular", [True, False])
    @pytest.mark.parametrize("length", [6, 7, 8])
    @pytest.mark.parametrize("num_more", [1, 2, 9])
    def test_it_goes_on(self, token_granular: bool, length: int, num_more: int) -> None:
        server = Server(token_granular=token_granular)
        prompt = SYSTEM[:length]
        server.ask(prompt, radix_pin=True)
        num_pinned = server.num_cached(prompt)
        server.ask(prompt + [2] * num_more)
        server.flood()
        assert server.num_cached(prompt) == num_pinned

    @pytest.mark.parametrize("length", [6, 8])
    def test_it_goes_on_in_two_ways(self, length: int) -> None:
        """Both at once, and later one is evicted: nodes are split and merged."""
        server = Server()
        prompt = SYSTEM[:length]
        server.ask(prompt, radix_pin=True)
        for token in (2, 3):
            server.engine.add(make_request(prompt + [token] * 8, max_tokens=4))
        server.engine.run()
        server.flood()
        assert server.num_cached([*prompt, 2]) == length

    def test_it_is_repeated(self) -> None:
        server = Server()
        for _ in range(3):
            server.ask(SYSTEM[:6], radix_pin=True)
        assert len(server.retention.pinned(0.0)) == 1
        server.flood()
        assert server.num_cached(SYSTEM) == 6

    def test_pinned_later_than_it_was_cached(self) -> None:
        server = Server()
        server.ask(SYSTEM[:6])
        server.ask(SYSTEM[:6], radix_pin=True)
        server.flood()
        assert server.num_cached(SYSTEM) == 6

    def test_what_it_lost_to_a_request_that_needed_it_is_pinned_no_more(self) -> None:
        server = Server()
        server.ask(SYSTEM, radix_pin=True)
        server.fill(14)
        assert server.num_cached(SYSTEM) == 4
        server.ask(SYSTEM)
        server.flood()
        assert server.num_cached(SYSTEM) == 4


class TestQuota:
    """Of 4 blocks."""

    def test_a_conversation_that_pins_each_turn(self) -> None:
        server = Server()
        server.serve(1, radix_pin=True)
        for length in (2, 5, 8):
            server.ask([7] * length, radix_pin=True)
        assert len(server.retention.pinned(0.0)) == 2
        assert server.num_pinned_blocks() == 4
        server.flood()
        assert server.is_cached(1)
        assert server.num_cached([7] * 8) == 8

    def test_what_two_pins_share_counts_once(self) -> None:
        server = Server()
        server.ask(SYSTEM + [2] * 4, radix_pin=True)
        server.ask(SYSTEM + [3] * 4, radix_pin=True)
        assert server.num_pinned_blocks() == 4
        server.flood()
        assert server.num_cached(SYSTEM + [2] * 4) == server.num_cached(SYSTEM + [3] * 4) == 12

    def test_pinned_again_is_the_youngest(self) -> None:
        server = Server()
        server.serve(1, 2, radix_pin=True)
        server.serve(1, radix_pin=True)
        server.serve(3, radix_pin=True)
        server.flood()
        assert server.cached(1, 2, 3) == [1, 3]

    def test_a_longer_pin_that_ends_earlier_replaces_none(self) -> None:
        server = Server()
        server.ask(SYSTEM, radix_pin=True)
        server.ask(SYSTEM + [2] * 4, radix_pin=True, radix_ttl_s=10)
        assert server.num_pinned_blocks() == 3
        server.flood()
        assert server.num_cached(SYSTEM + [2] * 4) == 12
        server.clock.now = 11.0
        server.flood()
        assert server.num_cached(SYSTEM + [2] * 4) == 8

    def test_a_pin_that_gives_way_keeps_its_time(self) -> None:
        server = Server()
        server.serve(9)
        server.serve(1, radix_pin=True, radix_ttl_s=10)
        server.serve(2, 3, radix_pin=True)
        server.clock.now = 11.0
        server.serve(4)
        server.evict(2)
        assert server.cached(1, 2, 3, 4, 9) == [2, 3, 4, 9]

    def test_pins_cut_to_what_they_share_are_one(self) -> None:
        """Each is pinned for long, and all but the common beginning is evicted all the same."""
        server = Server()
        for number in range(2, 30):
            server.ask(SYSTEM[:4] + [number] * 4, radix_pin=True, radix_ttl_s=1e9)
            server.fill(14)
        assert len(server.retention.pinned(0.0)) == 1
        assert server.num_cached(SYSTEM) == 4
        assert len(bookmarks(server)) == 1


def bookmarks(server: Server) -> list[Any]:
    return [mark for node in server.engine.tree for mark in node.bookmarks or ()]


def expired(server: Server) -> list[tuple[int, int]]:
    return [(node.start, node.end) for node in server.engine.tree if node.priority == EXPIRED]


class TestTimeToLive:
    def test_the_longer_time_counts(self) -> None:
        for times in ((10, 1000), (1000, 10)):
            server = Server()
            for ttl_s in times:
                server.serve(1, radix_ttl_s=ttl_s)
            server.serve(2)
            server.clock.now = 999.0
            server.serve(3)
            assert bookmarks(server)
            server.clock.now = 1001.0
            server.serve(3)
            assert not bookmarks(server)

    @pytest.mark.parametrize(
        "wishes",
        [
            ({"radix_pin": True}, {"radix_ttl_s": 10}),
            ({"radix_ttl_s": 10}, {"radix_pin": True}),
            ({"radix_pin": True, "radix_ttl_s": 10}, {"radix_pin": True}),
        ],
    )
    def test_a_pin_without_a_time_has_no_end(self, wishes: tuple[dict[str, Any], ...]) -> None:
        server = Server()
        for extra in wishes:
            server.serve(1, **extra)
        server.clock.now = 100.0
        server.flood()
        assert server.is_cached(1)

    @pytest.mark.parametrize("extra", [{}, {"radix_ttl_s": 1}])
    def test_a_use_prolongs_from_its_end(self, extra: dict[str, Any]) -> None:
        """Whenever it was that anybody looked; by whatever uses it, also a longer prompt."""
        server = Server()
        server.serve(1, radix_ttl_s=10)
        server.clock.now = 8.0
        server.ask(server.prompt(1) + [2] * 4, **extra)
        for server.clock.now in (9.0, 10.5, 17.9):
            server.serve(3)
            assert [mark.num_tokens for mark in bookmarks(server)][:1] == [8]
        server.clock.now = 18.1
        server.serve(3)
        assert not bookmarks(server)

    def test_a_shorter_prompt_is_no_use(self) -> None:
        server = Server()
        server.serve(1, radix_ttl_s=10)
        server.clock.now = 8.0
        server.ask(server.prompt(1)[:5])
        server.clock.now = 11.0
        server.serve(3)
        assert not bookmarks(server)

    def test_as_long_as_a_request_runs_it_is_used(self) -> None:
        server = Server()
        server.serve(1, radix_ttl_s=10)
        server.engine.add(make_request([*server.prompt(1), 2], max_tokens=4))
        for server.clock.now in (9.0, 15.0, 25.0, 30.0):
            server.engine.step()
            assert bookmarks(server)
        server.engine.run()
        server.clock.now = 39.9
        server.serve(3)
        assert bookmarks(server)
        server.clock.now = 40.1
        server.serve(3)
        assert not bookmarks(server)

    @pytest.mark.parametrize("length", [6, 8])
    def test_a_turn_goes_on_from_it(self, length: int) -> None:
        """Whether the prefix ends inside a block or not, its time runs on; the turn has none."""
        server = Server()
        prompt = SYSTEM[:length]
        server.ask(prompt, radix_ttl_s=10)
        server.ask(prompt + [2] * (12 - length))
        server.clock.now = 11.0
        server.serve(5)
        assert expired(server) == [(0, length)]
        assert not bookmarks(server)

    def test_what_others_share_does_not_end_with_it(self) -> None:
        server = Server()
        server.ask(SYSTEM + [2] * 4)
        server.ask(SYSTEM + [3] * 4, radix_ttl_s=10)
        server.clock.now = 11.0
        server.serve(5)
        assert expired(server) == [(8, 12)]
        server.evict(1)
        assert server.num_cached(SYSTEM + [3] * 4) == 8
        assert server.num_cached(SYSTEM + [2] * 4) == 12
        assert expired(server) == []

    @pytest.mark.parametrize("extra", [{"radix_ttl_s": 1000}, {"radix_pin": True}])
    def test_what_has_longer_to_live_does_not_end_with_it(self, extra: dict[str, Any]) -> None:
        server = Server()
        server.ask(SYSTEM, **extra)
        server.ask(SYSTEM + [2] * 4, radix_ttl_s=10)
        server.clock.now = 11.0
        server.serve(5)
        assert expired(server) == [(8, 12)]
        assert [mark.num_tokens for mark in bookmarks(server)] == [8]

    def test_who_uses_it_after_its_end_asks_anew(self) -> None:
        server = Server()
        server.ask(SYSTEM, radix_ttl_s=10)
        server.clock.now = 11.0
        server.serve(5)
        assert expired(server) == [(0, 8)]
        server.ask(SYSTEM)
        assert (expired(server), bookmarks(server)) == ([], [])

    def test_one_claim_for_each_prefix(self) -> None:
        server = Server()
        for _ in range(50):
            server.serve(1, 2, radix_ttl_s=3)
        assert len(bookmarks(server)) == len(server.retention._lives) == 2

    @pytest.mark.parametrize("ttl_s", [3, 1e9, 1e-20])
    def test_claims_stay_few(self, ttl_s: float) -> None:
        """Of what was evicted long ago, and of what has a long time left."""
        server = Server()
        for number in range(2000):
            server.clock.now += 0.5
            server.engine.generate(
                make_request(
                    [number] * 9, max_tokens=1, sampling={"extra_args": {"radix_ttl_s": ttl_s}}
                )
            )
            assert len(server.retention._lives) <= 2 * 8 + 64 + 1
        assert len(bookmarks(server)) <= 8

    def test_clearing_the_cache_ends_it(self) -> None:
        server = Server()
        server.serve(1, radix_ttl_s=10)
        server.serve(2, radix_pin=True)
        assert server.engine.scheduler.reset_prefix_cache()
        server.clock.now = 11.0
        assert server.retention.pinned(11.0) == []
        assert (len(server.retention._lives), len(server.retention._pins)) == (0, 0)
