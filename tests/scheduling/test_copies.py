# SPDX-License-Identifier: Apache-2.0
"""Matches that end inside a block: whatever happens meanwhile, the copy holds the right KV."""

from typing import Any

import pytest
from vllm.v1.core.sched.output import SchedulerOutput

from .engine import Engine
from .factory import make_request, make_scheduler

PROMPT = list(range(100, 111))
"""Two full blocks and three tokens."""

modes = pytest.mark.parametrize(
    "mode",
    [
        {},
        {"async_scheduling": True},
        {"async_scheduling": True, "late": True},
    ],
    ids=["sync", "async", "async, executed late"],
)


def make_engine(*, late: bool = False, **options: Any) -> Engine:
    """An engine that has ``PROMPT`` cached in three blocks, of which the last is not full."""
    engine = Engine(make_scheduler(**options), late=late)
    engine.generate(make_request(PROMPT, max_tokens=1))
    engine.check_idle()
    assert [(node.end, len(node.blocks)) for node in engine.tree if node.end] == [(11, 3)]
    return engine


def cached_blocks(engine: Engine) -> list[int]:
    return [block for node in engine.tree for block in node.blocks]


def copies(scheduled: SchedulerOutput) -> list[tuple[int, int]]:
    return [(c.src_block_id, c.dst_block_id) for c in scheduled.kv_cache_block_copies or ()]


def finish(engine: Engine) -> None:
    engine.run()
    engine.check_idle()
    for request_id in engine.finished:
        tokens = engine.tokens[request_id]
        assert tokens == engine.worker.continuation(engine.requests[request_id], len(tokens))


@modes
def test_the_block_is_copied_and_the_request_goes_on_in_the_copy(mode: dict[str, Any]) -> None:
    engine = make_engine(**mode)
    (*full, source) = cached_blocks(engine)
    request = engine.add(make_request([*PROMPT[:10], 7, 8]))
    scheduled = engine.step()
    assert scheduled.num_scheduled_tokens == {request.request_id: 2}
    table = engine.blocks(request)
    assert table[:2] == full
    assert copies(scheduled) == [(source, table[2])] and table[2] != source
    finish(engine)


@modes
def test_a_match_at_the_end_of_a_block_needs_no_copy(mode: dict[str, Any]) -> None:
    engine = make_engine(**mode)
    request = engine.add(make_request([*PROMPT[:8], 7, 8]))
    scheduled = engine.step()
    assert scheduled.num_scheduled_tokens == {request.request_id: 2}
    assert copies(scheduled) == []
    finish(engine)


@modes
def test_the_room_for_a_request_is_not_made_of_what_it_copies(mode: dict[str, Any]) -> None:
    """The oldest block goes first, and here that is the source."""
    engine = make_engine(num_blocks=1 + 8, **mode)
    source = cached_blocks(engine)[2]
    engine.generate(make_request([5] * 20, max_tokens=1))
    engine.check_idle()
    assert next(iter(engine.pool.reuse_order())) == source
    request = engine.add(make_request([*PROMPT, *range(12)], max_tokens=4))
    scheduled = engine.step()
    assert scheduled.num_scheduled_tokens == {request.request_id: 12}
    assert [copy[0] for copy in copies(scheduled)] == [source]
    assert source not in engine.blocks(request)
    finish(engine)


@modes
def test_several_requests_copy_one_block_in_one_step(mode: dict[str, Any]) -> None:
    engine = make_engine(**mode)
    source = cached_blocks(engine)[2]
    engine.add(*(make_request([*PROMPT[: 9 + n], 50 + n], f"{n}") for n in range(3)))
    scheduled = engine.step()
    assert scheduled.num_scheduled_tokens == {"0": 1, "1": 1, "2": 1}
    assert [copy[0] for copy in copies(scheduled)] == [source] * 3
    assert len({copy[1] for copy in copies(scheduled)}) == 3
    finish(engine)


@modes
def test_the_block_that_the_first_request_of_a_step_supersedes_serves_the_others_too(
    mode: dict[str, Any],
) -> None:
    """The first fills its copy, which is cached in the place of the source at once."""
    engine = make_engine(**mode)
    source = cached_blocks(engine)[2]
    engine.add(
        make_request([*PROMPT, 50, 51], "fills it"),
        make_request([*PROMPT, 60, 61], "fills another"),
        make_request([*PROMPT, 60, 62], "shares that block"),
        make_request([*PROMPT, 70], "ends in it"),
        make_request([*PROMPT[:10], 80], "shares two tokens of it"),
        make_request([*PROMPT[:9], 50, 51, 52], "shares one"),
    )
    scheduled = engine.step()
    assert scheduled.num_scheduled_tokens == {
        "fills it": 2,
        "fills another": 2,
        "shares that block": 1,
        "ends in it": 1,
        "shares two tokens of it": 1,
        "shares one": 3,
    }
    assert [copy[0] for copy in copies(scheduled)] == [source] * 5
    assert source not in cached_blocks(engine)
    finish(engine)


@modes
@pytest.mark.parametrize("num_steps", range(4))
def test_aborted_when_the_copy_is_ordered(mode: dict[str, Any], num_steps: int) -> None:
    """At once another takes all blocks, that of the source and that of the copy among them."""
    engine = make_engine(num_blocks=1 + 8, **mode)
    request = engine.add(make_request([*PROMPT, 7, 8]))
    assert copies(engine.step())
    for _ in range(num_steps):
        engine.step()
    engine.abort(request)
    engine.check()
    other = engine.add(make_request([9] * 29, max_tokens=4))
    scheduled = engine.step()
    assert scheduled.num_scheduled_tokens == {other.request_id: 29}
    finish(engine)


@modes
def test_preempted_after_the_step_with_the_copy(mode: dict[str, Any]) -> None:
    """The copy is full, so the source is free for one request; its owner gives way to another."""
    engine = make_engine(num_blocks=1 + 10, **mode)
    source = cached_blocks(engine)[2]
    growing = [make_request([number] * 3, f"{number}", max_tokens=10) for number in (1, 2, 3)]
    engine.add(*growing)
    engine.step()
    copying = engine.add(make_request([*PROMPT, *range(8)], "copying", max_tokens=4))
    scheduled = engine.step()
    assert scheduled.num_scheduled_tokens == {"1": 1, "2": 1, "3": 1, "copying": 8}
    assert [copy[0] for copy in copies(scheduled)] == [source]
    assert engine.pool.get_num_free_blocks() == 2
    scheduled = engine.step()
    assert scheduled.num_scheduled_tokens == {"1": 1, "2": 1, "3": 1}
    assert source in engine.blocks(growing[0])
    assert copying.num_preemptions == 1
    finish(engine)
    assert set(engine.finished) >= {"1", "2", "3", "copying"}


@modes
def test_the_source_found_wrong_when_the_copy_is_ordered(mode: dict[str, Any]) -> None:
    """Nobody finds it again; who has copied it is not heard of by those who reported it."""
    engine = make_engine(**mode)
    source = cached_blocks(engine)[2]
    engine.add(make_request([*PROMPT, 7, 8]))
    assert copies(engine.step())
    engine.manager.evict_blocks({source})
    engine.pool.check()
    assert engine.manager.get_computed_blocks(make_request([*PROMPT[:10], 1]))[1] >= 8
    finish(engine)


@pytest.mark.parametrize(("num_blocks", "computed"), [(4, 5), (5, 5), (6, 2)])
def test_a_pool_without_room_for_the_copy(num_blocks: int, computed: int) -> None:
    """The match is whole blocks then, and the request runs."""
    engine = make_engine(num_blocks=1 + num_blocks, max_model_len=16)
    request = engine.add(make_request([*PROMPT, 7, 8], max_tokens=3))
    scheduled = engine.step()
    assert scheduled.num_scheduled_tokens == {request.request_id: computed}
    assert len(copies(scheduled)) == (computed == 2)
    finish(engine)
