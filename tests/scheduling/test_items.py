# SPDX-License-Identifier: Apache-2.0
"""Images and the like: what a scheduler does for them, besides their KV."""

from types import SimpleNamespace
from typing import Any

import pytest
from packaging.version import Version
from vllm.multimodal.inputs import MultiModalFeatureSpec, MultiModalKwargsItem
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler as VllmScheduler

import vllm_radix
from vllm_radix.compat import vllm_version

from .engine import Engine
from .factory import image, make_request, make_scheduler, sliding_window

NEVER_SPLITS = Version(vllm_version()) >= Version("0.33")
"""Whether vLLM leaves items that must not be split, and that no step has room for, unscheduled."""

asynchronous = pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])


def watch(engine: Engine) -> list[SchedulerOutput]:
    """Everything that is scheduled from now on."""
    scheduled = []
    schedule = engine.scheduler.schedule

    def schedule_and_tell(*args: Any, **kwargs: Any) -> SchedulerOutput:
        scheduled.append(schedule(*args, **kwargs))
        return scheduled[-1]

    engine.scheduler.schedule = schedule_and_tell  # type: ignore[method-assign]
    return scheduled


def chunks_of(scheduled: list[SchedulerOutput], request_id: str) -> list[tuple[int, int]]:
    """What each step computes of a request: the first position, and the one after the last."""
    chunks = []
    start = 0
    for step in scheduled:
        for new in step.scheduled_new_reqs:
            if new.req_id == request_id:
                start = new.num_computed_tokens
        num_tokens = step.num_scheduled_tokens.get(request_id, 0)
        if num_tokens:
            chunks.append((start, start + num_tokens))
            start += num_tokens
    return chunks


def with_image(name: str, item: str, first: int) -> Any:
    """A prompt of an image of eight tokens between two others."""
    prompt = [first] + [9] * 8 + [2]
    return make_request(prompt, name, mm_features=[image(item, 1, 8)], max_tokens=1)


@asynchronous
def test_whose_images_are_encoded_goes_first(async_scheduling: bool) -> None:
    """All else equal: none of them has anything cached."""
    engine = Engine(make_scheduler(max_num_seqs=1, async_scheduling=async_scheduling))
    engine.add(with_image("before", "dog", 1))
    engine.run()
    engine.scheduler.reset_prefix_cache()
    engine.add(make_request([4] * 8, "running", max_tokens=6))
    engine.step()
    scheduled = watch(engine)
    for name, item in [("a", "cat"), ("b", "dog"), ("c", "cow")]:
        engine.add(with_image(name, item, 50 + ord(name)))
    engine.run()
    assert [new.req_id for step in scheduled for new in step.scheduled_new_reqs] == ["b", "a", "c"]


@asynchronous
def test_who_has_more_of_its_images_cached_goes_first(async_scheduling: bool) -> None:
    """The text is the same for all of them, and all images are in the encoder cache."""
    engine = Engine(make_scheduler(max_num_seqs=1, async_scheduling=async_scheduling))

    def with_images(name: str, *items: str) -> Any:
        features = [image(item, 1 + 5 * number, 4) for number, item in enumerate(items)]
        return make_request([1, *[9] * 15], name, mm_features=features, max_tokens=1)

    for number, items in enumerate((("cat", "dog", "cow"), ("dog", "cow", "cat"))):
        engine.add(with_images(f"before {number}", *items))
        engine.run()
    engine.add(make_request([4] * 8, "running", max_tokens=6))
    engine.step()
    scheduled = watch(engine)
    engine.add(with_images("none", "cow", "cat", "dog"))
    engine.add(with_images("one", "cat", "cow", "dog"))
    engine.add(with_images("two", "dog", "cow", "dog"))
    engine.run()
    order = [new.req_id for step in scheduled for new in step.scheduled_new_reqs]
    assert order == ["two", "one", "none"]


def test_an_image_whose_end_is_cut_off_a_hit_has_to_be_encoded() -> None:
    """Of nine cached tokens eight are reused, and the ninth is the last of the image."""
    engine = Engine(make_scheduler(max_num_seqs=1, radix={"token_granular": False}))
    items = [image("dog", 1, 8)]
    for cached in (
        make_request([1, *[9] * 8, 2, 2, 2], mm_features=items, max_tokens=1),
        make_request([3] * 12, max_tokens=1),
    ):
        engine.add(cached)
        engine.run()
    engine.scheduler.encoder_cache_manager.reset()
    engine.add(make_request([4] * 8, "running", max_tokens=6))
    engine.step()
    scheduled = watch(engine)
    engine.add(with_image("image", "dog", 1))
    engine.add(make_request([3] * 9 + [2], "text", max_tokens=1))
    engine.run()
    assert [new.req_id for step in scheduled for new in step.scheduled_new_reqs] == [
        "text",
        "image",
    ]
    [encoded] = [
        step.scheduled_encoder_inputs for step in scheduled if step.scheduled_encoder_inputs
    ]
    assert encoded == {"image": [0]}


@asynchronous
@pytest.mark.parametrize("num_before", range(4, 12))
@pytest.mark.parametrize("num_taken", [0, 1, 20, 27, 40])
def test_an_item_that_must_not_be_split_is_not(
    num_before: int, num_taken: int, async_scheduling: bool
) -> None:
    """Though a match ends where another image begins, and others take a part of the step."""
    scheduler = make_scheduler(
        num_blocks=200, max_num_batched_tokens=50, async_scheduling=async_scheduling
    )
    scheduler.scheduler_config.disable_chunked_mm_input = True
    engine = Engine(scheduler)
    before = list(range(1, num_before + 1))

    def with_item(name: str) -> Any:
        item = image(name, num_before, 30)
        return make_request([*before, *[9] * 30, 5, 6], name, mm_features=[item], max_tokens=1)

    engine.add(with_item("first"))
    engine.run()
    scheduled = watch(engine)
    if num_taken:
        engine.add(make_request([7] * num_taken, max_tokens=1))
    engine.add(with_item("second"))
    engine.run()
    chunks = chunks_of(scheduled, "second")
    assert chunks[0][0] == num_before
    inside = range(num_before + 1, num_before + 30)
    assert not any(start in inside or end in inside for start, end in chunks)
    engine.check_idle()


@pytest.mark.parametrize(("num_slots", "num_scheduled"), [(0, 50), (3, 50), (0, 47)])
@pytest.mark.parametrize("num_before", [0, 3])
@pytest.mark.parametrize("length", range(44, 52))
def test_requests_with_items_that_fill_a_step_all_run(
    length: int, num_before: int, num_slots: int, num_scheduled: int
) -> None:
    """Of 50 tokens in a step, drafters need some for each request, or others are left for them."""
    room = min(50 - num_slots, num_scheduled)
    if NEVER_SPLITS and length > room:
        pytest.skip("this vLLM has them wait for ever")
    scheduler = make_scheduler(num_blocks=200, max_num_batched_tokens=50)
    scheduler.scheduler_config.disable_chunked_mm_input = True
    scheduler.vllm_config.speculative_config = SimpleNamespace(
        max_num_new_slots_for_drafting=num_slots, num_speculative_tokens=0
    )
    scheduler.max_num_scheduled_tokens = num_scheduled
    engine = Engine(scheduler)
    scheduled = watch(engine)
    requests = [
        make_request(
            [*range(1, num_before + 1), *[9] * length, 5],
            name,
            mm_features=[image(name, num_before, length)],
            max_tokens=3,
        )
        for name in ("one", "another")
    ]
    for request in requests:
        engine.add(request)
    for _ in range(20):
        engine.step()
    assert engine.finished >= {"one", "another"}
    if length <= room:
        # Nothing has to be split.
        for request in requests:
            for start, end in chunks_of(scheduled, request.request_id):
                assert {start, end}.isdisjoint(range(num_before + 1, num_before + length))


def test_what_is_left_of_an_item_must_not_be_split_either() -> None:
    """The end of the image was evicted, and another request takes most of the step."""
    scheduler = make_scheduler(num_blocks=200, max_num_batched_tokens=50)
    scheduler.scheduler_config.disable_chunked_mm_input = True
    engine = Engine(scheduler)

    def with_item(name: str) -> Any:
        item = image("cat", 4, 40)
        return make_request([1, 2, 3, 4, *[9] * 40, 5], name, mm_features=[item], max_tokens=1)

    engine.add(with_item("first"))
    engine.run()
    engine.pool.reclaim(engine.tree.evict(6))
    scheduled = watch(engine)
    engine.add(make_request([7] * 40, max_tokens=1))
    engine.add(with_item("second"))
    engine.run()
    assert chunks_of(scheduled, "second") == [(24, 45)]


def test_the_manager_of_vllm_splits_as_it_does_on_stock() -> None:
    chunks = []
    for cls in (vllm_radix.Scheduler, VllmScheduler):
        scheduler = make_scheduler(
            cls, num_blocks=200, max_num_batched_tokens=50, specs=(sliding_window(),)
        )
        scheduler.scheduler_config.disable_chunked_mm_input = True
        engine = Engine(scheduler)
        scheduled = watch(engine)
        engine.add(make_request([7] * 40, max_tokens=1, hashed=True))
        item = image("cat", 0, 30)
        engine.add(
            make_request([9] * 30 + [5], "item", mm_features=[item], max_tokens=1, hashed=True)
        )
        for _ in range(5):
            engine.step()
        chunks.append(chunks_of(scheduled, "item"))
    assert chunks[0] == chunks[1] != []


@pytest.mark.skipif(NEVER_SPLITS, reason="this vLLM lets it wait until it is alone")
def test_an_item_longer_than_any_chunk_is_split() -> None:
    """Rather than wait for ever, as the threshold holds whenever another request is there."""
    scheduler = make_scheduler(num_blocks=200, long_prefill_token_threshold=16)
    scheduler.scheduler_config.disable_chunked_mm_input = True
    engine = Engine(scheduler)
    engine.add(make_request([7] * 4, max_tokens=40))
    engine.step()
    scheduled = watch(engine)
    item = image("long", 0, 30)
    engine.add(make_request([9] * 30 + [5], "long", mm_features=[item], max_tokens=1))
    engine.run()
    assert chunks_of(scheduled, "long") == [(0, 16), (16, 31)]


@pytest.mark.parametrize("use_v2_model_runner", [False, True])
def test_a_worker_that_gets_pixels_once_gets_those_of_cached_images(
    use_v2_model_runner: bool,
) -> None:
    """It needs them if the image is evicted while the request is preempted."""
    scheduler = make_scheduler()
    scheduler.use_v2_model_runner = use_v2_model_runner
    engine = Engine(scheduler)

    def with_pixels(last: int) -> Any:
        position = image("cat", 2, 4).mm_position
        item = MultiModalFeatureSpec(MultiModalKwargsItem(), "image", "cat", position)
        return make_request([9] * 8 + [last], mm_features=[item], max_tokens=1)

    engine.add(with_pixels(1))
    engine.run()
    scheduled = watch(engine)
    engine.add(with_pixels(2))
    engine.run()
    [new] = [new for step in scheduled for new in step.scheduled_new_reqs]
    assert new.num_computed_tokens == 8
    assert (new.mm_features[0].data is None) == use_v2_model_runner
