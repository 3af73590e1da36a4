# SPDX-License-Identifier: Apache-2.0
"""Any scheduler class can be named, with its configuration."""

import pytest
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

import vllm_radix
from vllm_radix.bench.replay.schedulers import (
    EvictionCounter,
    Limits,
    block_hasher,
    build_scheduler,
    parse_scheduler,
)
from vllm_radix.scheduling.scheduler import RadixScheduler


class Mine(Scheduler):
    """A user's own."""


def test_names_and_dotted_classes() -> None:
    assert parse_scheduler("stock").cls is Scheduler
    assert parse_scheduler("radix").cls is vllm_radix.Scheduler
    dotted = parse_scheduler("vllm.v1.core.sched.async_scheduler.AsyncScheduler")
    assert dotted.cls is AsyncScheduler
    mine = parse_scheduler(f'{__name__}.Mine:{{"mine": 1}}')
    assert mine.cls is Mine
    assert mine.additional_config == {"mine": 1}
    variant = parse_scheduler('radix:{"eviction": "lfu"}')
    assert variant.additional_config == {"radix": {"eviction": "lfu"}}
    assert variant.label == 'radix:{"eviction": "lfu"}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fast", "^There is no scheduler 'fast': give stock, radix or a class as"),
        ("no.such.Class", "^There is no scheduler 'no.such.Class' .*'no'"),
        ("vllm_radix.Nothing", "^There is no scheduler 'vllm_radix.Nothing' .*no attribute"),
        ('radix:{"evict": 1}', "there is no option 'evict'"),
        ('vllm_radix.Scheduler:{"eviction": "lfu"}', 'eviction must stand inside "radix"'),
        ("os.path.join", "^os.path.join is no scheduler: give stock, radix or a class that"),
        ("pathlib.Path", "^pathlib.Path is no scheduler"),
        ("vllm.v1.core.sched.interface.SchedulerInterface", "SchedulerInterface is no scheduler"),
        ('stock:{"eviction": "lfu"}', "^stock is vLLM's own and takes no options"),
        (
            'vllm.v1.core.sched.async_scheduler.AsyncScheduler:{"mine": 1}',
            "AsyncScheduler is vLLM's own and takes no options",
        ),
    ],
)
def test_unknown_ones_are_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_scheduler(text)


def test_requests_get_all_blocks_asked_for() -> None:
    for name in ("stock", "radix"):
        scheduler = build_scheduler(parse_scheduler(name), Limits(32, 7, 96), 10, 100)
        assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == 10
        assert scheduler.block_size == 32
        assert scheduler.max_num_running_reqs == 7
        assert scheduler.max_num_scheduled_tokens == 96


def test_limits_that_vllm_refuses_are_told_in_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"^vLLM does not accept this: .*max_num_seqs") as error:
        build_scheduler(parse_scheduler("stock"), Limits(16, 64, 16), 10, 100)
    assert "\n" not in str(error.value)


def test_a_variant_reaches_its_scheduler() -> None:
    choice = parse_scheduler('radix:{"skip_hashing": false}')
    scheduler = build_scheduler(choice, Limits(), 10, 100)
    assert isinstance(scheduler, RadixScheduler)
    assert block_hasher(scheduler, 16) is not None
    assert block_hasher(build_scheduler(parse_scheduler("radix"), Limits(), 10, 100), 16) is None


def test_evictions_of_an_unknown_pool_are_not_counted() -> None:
    scheduler = build_scheduler(parse_scheduler("stock"), Limits(), 10, 100)
    assert EvictionCounter(scheduler).num_blocks == 0
    scheduler.kv_cache_manager.block_pool = object()  # type: ignore[assignment]
    assert EvictionCounter(scheduler).num_blocks is None
