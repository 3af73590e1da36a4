# SPDX-License-Identifier: Apache-2.0
"""Matches that end inside a block, where somebody else wants the same block or its room."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import pytest
from vllm.v1.core.sched.output import SchedulerOutput

from .asynchronous import asynchronous_cpu
from .conftest import Comparison, EngineFactory, cached
from .engines import Ask, Engine, assert_same, one_by_one
from .prompts import other_than, tokens

pytestmark = pytest.mark.engine


@pytest.fixture(params=[16, 32, 128])
def block_size(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture(params=["sync", "async"])
def mode(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """Engine arguments of a scheduler that waits for each step, and of one that does not."""
    with ExitStack() as stack:
        if request.param == "async":
            stack.enter_context(asynchronous_cpu())
        yield {"async_scheduling": request.param == "async"}


def scheduled_by(engine: Engine) -> tuple[ExitStack, list[SchedulerOutput]]:
    """What the engine schedules while the first is open."""
    outputs: list[SchedulerOutput] = []
    schedule = engine.scheduler.schedule

    def note(*args: Any, **kwargs: Any) -> SchedulerOutput:
        outputs.append(schedule(*args, **kwargs))
        return outputs[-1]

    stack = ExitStack()
    stack.enter_context(patch.object(engine.scheduler, "schedule", note))
    return stack, outputs


def num_copies(output: SchedulerOutput) -> int:
    return len(output.kv_cache_block_copies or ())


@pytest.mark.parametrize("together", [False, True], ids=["one by one", "together"])
def test_an_adopted_tail_that_others_extend_differently(
    compare: Comparison, block_size: int, together: bool
) -> None:
    """A finished request's last block goes on in four ways, and as it was."""
    prompt = tokens("adopted", block_size + block_size // 4)
    [first] = compare([Ask(prompt, max_tokens=5)], block_size=block_size)["off"]
    said = prompt + tuple(first.tokens[0])
    computed = len(said) - 1
    asks = [
        Ask(said + tokens("left", 3), max_tokens=block_size),
        Ask(said + tokens("right", block_size), max_tokens=6),
        # One that differs in the last token of the tail, and one within the prompt.
        Ask((*said[: computed - 1], other_than(said[computed - 1]), 9), max_tokens=6),
        Ask(said[: len(prompt) - 2] + tokens("within", 4), max_tokens=6),
        Ask(said, max_tokens=6),
    ]
    arrivals = None if together else one_by_one(asks)
    answers = compare(asks, arrivals, block_size=block_size)
    # One by one, the first has computed the token that the tail lacked. Together, the second fills
    # the block, which takes the tail's place; the tail stays to be copied.
    second = computed if together else computed + 1
    expected = [computed, second, computed - 1, len(prompt) - 2, computed]
    assert cached(answers["radix"]) == expected
    # Each goes on where it ended: the first to adopt the tail has changed it for nobody.
    again = [
        Ask((*ask.prompt, *answer.tokens[0], 4), max_tokens=3)
        for ask, answer in zip(asks, answers["off"], strict=True)
    ]
    answers = compare(again, arrivals, block_size=block_size)
    assert cached(answers["radix"]) == [len(ask.prompt) - 2 for ask in again]


def test_a_pool_with_no_spare_block_for_the_copy(engine: EngineFactory, block_size: int) -> None:
    """The match is whole blocks then, and the request runs; with room it is every token."""
    prompt = tokens("no spare", 2 * block_size + block_size // 2)
    asks = [Ask(prompt, max_tokens=1), Ask((*prompt[:-3], 3, 4), max_tokens=block_size)]
    expected = engine("off", block_size=block_size).run(asks)
    for num_blocks in (4, 5, 6):
        eng = engine(
            "radix",
            block_size=block_size,
            num_gpu_blocks_override=1 + num_blocks,
            max_model_len=4 * block_size,
        )
        stack, outputs = scheduled_by(eng)
        with stack:
            got = eng.run(asks, one_by_one(asks))
        assert_same(expected, got)
        has_room = num_blocks > 4
        assert got[1].cached == (len(prompt) - 3 if has_room else 2 * block_size)
        assert sum(map(num_copies, outputs)) == has_room
        assert eng.totals.preemptions == 0


def test_preempted_with_the_copy_in_flight(
    engine: EngineFactory, block_size: int, mode: dict[str, Any]
) -> None:
    """In the step after the copy's, its owner gives way, and its source's room is taken."""
    prompt = tokens("copied", 2 * block_size + block_size // 2)
    growing = [Ask(tokens(f"growing {i}", block_size - 1), max_tokens=9) for i in range(3)]
    copying = Ask((*prompt, *tokens("rest", block_size)), max_tokens=5)
    off = engine("off", block_size=block_size)
    expected = off.run([*growing, copying])
    # The cached prompt takes 3 blocks, each growing request 1, the copying one 2 of its own.
    eng = engine(
        "radix",
        block_size=block_size,
        num_gpu_blocks_override=1 + 3 + 3 + 2 + 1,
        max_model_len=4 * block_size,
        **mode,
    )
    eng.run([Ask(prompt, max_tokens=1)])
    stack, outputs = scheduled_by(eng)
    with stack:
        ids = [eng.add(ask) for ask in growing]
        eng.step()
        ids.append(eng.add(copying))
        eng.drain()
    [number] = [i for i, output in enumerate(outputs[:4]) if num_copies(output)]
    with_copy, after = outputs[number : number + 2]
    copy_owner = with_copy.scheduled_new_reqs[0].req_id
    assert with_copy.num_scheduled_tokens[copy_owner] == block_size
    assert copy_owner not in after.num_scheduled_tokens
    assert eng.totals.preemptions >= 1
    [copy] = with_copy.kv_cache_block_copies or ()
    taken = [ids for ids in after.scheduled_cached_reqs.new_block_ids if ids is not None]
    assert [copy.src_block_id] in [ids[0] for ids in taken]
    assert_same(expected, [eng.answers[i] for i in ids])
    # What the copy left in the cache is right as well.
    later = [Ask((*copying.prompt[:-2], 5), max_tokens=4), copying]
    assert_same(off.run(later), eng.run(later, one_by_one(later)))


def test_aborted_with_the_copy_in_flight(
    engine: EngineFactory, block_size: int, mode: dict[str, Any]
) -> None:
    """Another request takes the whole pool at once: the source's block, and the copy's."""
    prompt = tokens("aborted copy", 2 * block_size + block_size // 2)
    copying = Ask((*prompt, 3, 4), max_tokens=5)
    others = [Ask(tokens("all of it", 6 * block_size - 3), max_tokens=3), copying]
    expected = engine("off", block_size=block_size).run(others)
    eng = engine(
        "radix",
        block_size=block_size,
        num_gpu_blocks_override=1 + 6,
        max_model_len=6 * block_size,
        **mode,
    )
    eng.run([Ask(prompt, max_tokens=1)])
    stack, outputs = scheduled_by(eng)
    with stack:
        victim = eng.add(copying)
        eng.step()
        eng.abort(victim)
        assert sum(map(num_copies, outputs)) == 1
        got = eng.run(others, one_by_one(others))
    assert victim not in eng.answers
    assert_same(expected, got)
