# SPDX-License-Identifier: Apache-2.0
"""What is cached of a waiting request, and when to look again."""

from typing import Any

import pytest
import torch
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

from vllm_radix.config import RadixConfig
from vllm_radix.scheduling import lane
from vllm_radix.scheduling.probe import BlockHashProbe, EncoderCacheProbe, TreeProbe

from .factory import MAX_MODEL_LEN, full_attention, image, make_manager, make_request


class Cache:
    """A manager, and a probe that asks it. Blocks of 4 tokens."""

    def __init__(self, kind: str) -> None:
        self.manager: Any
        self.probe: Any
        if kind == "tree":
            self.manager = make_manager()
            self.probe = TreeProbe(self.manager)
        else:
            self.manager = KVCacheManager(
                KVCacheConfig(65, [], [KVCacheGroupSpec(["layer"], full_attention())]),
                max_model_len=MAX_MODEL_LEN,
                scheduler_block_size=4,
                hash_block_size=4,
                max_in_flight_tokens=MAX_MODEL_LEN,
            )
            self.probe = BlockHashProbe(self.manager, 4)

    def start(self, prompt: list[int]) -> Request:
        """Compute a prompt; what is cached of it already is not counted as such."""
        request = make_request(prompt, hashed=True)
        blocks, num_hit, _ = self.manager.get_computed_blocks(request)
        assert self.manager.allocate_slots(request, len(prompt) - num_hit, num_hit, blocks)
        request.num_computed_tokens = len(prompt)
        self.manager.new_step_starts()
        return request

    def end(self, request: Request) -> None:
        self.manager.free(request)

    def compute(self, prompt: list[int]) -> None:
        self.end(self.start(prompt))


class Watcher:
    """A waiting request, whose prefix is looked up when the probe says so, and only then."""

    def __init__(self, cache: Cache, prompt: list[int]) -> None:
        self.cache = cache
        self.request = make_request(prompt, hashed=True)
        self.look()

    def look(self) -> None:
        probe = self.cache.probe
        self.prefix = probe.find(self.request)
        self.lacks = probe.lacking(self.request, self.prefix)
        self.state = probe.state(self.prefix.node)

    def has_changed(self) -> bool:
        probe = self.cache.probe
        if probe.state(self.prefix.node) == self.state:
            return False
        changed = probe.changed(self.prefix.node, self.state, [self.lacks])
        assert changed in ([], [self.lacks])
        return bool(changed)


both = pytest.mark.parametrize("kind", ["tree", "hashes"])


@both
def test_more_of_it_is_cached(kind: str) -> None:
    cache = Cache(kind)
    for token in (8, 9):
        cache.compute([1] * 4 + [token] * 4)
    watcher = Watcher(cache, [1] * 4 + [2] * 9)
    assert watcher.prefix.num_tokens == 4
    cache.compute([1] * 4 + [3] * 4)
    assert not watcher.has_changed()
    cache.compute([1] * 4 + [2] * 4)
    assert watcher.has_changed()
    watcher.look()
    assert watcher.prefix.num_tokens == 8
    assert not watcher.has_changed()


@both
def test_nothing_is_cached_and_then_something_is(kind: str) -> None:
    cache = Cache(kind)
    running = cache.start([7] * 4)
    watcher = Watcher(cache, [2] * 9)
    assert watcher.prefix.num_tokens == 0
    cache.compute([3] * 8)
    assert not watcher.has_changed()
    cache.compute([2] * 8)
    assert watcher.has_changed()
    cache.end(running)


@both
def test_less_of_it_is_cached(kind: str) -> None:
    cache = Cache(kind)
    cache.compute([1] * 8)
    watcher = Watcher(cache, [1] * 8 + [2] * 9)
    assert watcher.prefix.num_tokens == 8
    cache.compute([9] * (4 * 64))
    assert watcher.has_changed()
    watcher.look()
    assert watcher.prefix.num_tokens == 0


@both
def test_all_but_the_last_token_is_cached(kind: str) -> None:
    """Nothing can make such a prefix longer."""
    cache = Cache(kind)
    cache.compute([1] * 8)
    watcher = Watcher(cache, [1] * 8 + [2] * (1 if kind == "tree" else 4))
    assert watcher.prefix.num_tokens == 8 and watcher.lacks is None
    cache.compute([1] * 8 + [2] * 8)
    assert not watcher.has_changed()


def test_a_leaf_that_grows_in_place() -> None:
    cache = Cache("tree")
    running = cache.start([1] * 8)
    watcher = Watcher(cache, [1] * 8 + [5] * 9)
    other = Watcher(cache, [1] * 6 + [6] * 9)
    assert (watcher.prefix.num_tokens, other.prefix.num_tokens) == (8, 6)
    running.append_output_token_ids([5] * 4)
    cache.manager.allocate_slots(running, 4)
    assert watcher.has_changed()
    assert not other.has_changed()
    watcher.look()
    assert watcher.prefix.num_tokens == 12
    cache.end(running)


def test_what_is_less_than_a_block_makes_no_cohort() -> None:
    cache = Cache("tree")
    for last in range(3):
        cache.compute([*range(10, 18), *range(3), 50 + last, 0, 0, 0, 0])

    def cohort(prompt: list[int]) -> tuple[int, int]:
        prefix = cache.probe.find(make_request(prompt))
        node, num_tokens = cache.probe.cohort(prefix)
        assert node.end >= num_tokens > node.start or num_tokens == 0
        return prefix.num_tokens, num_tokens

    system = [*range(10, 18)]
    assert cohort([*system, 0, 1, 2, 99]) == (11, 11)
    assert cohort([*system, 0, 1, 2, 50, 0, 99]) == (13, 11)
    assert cohort([*system, 0, 1, 2, 50, 0, 0, 0, 99]) == (15, 12)
    assert cohort([*system[:3], 99]) == (3, 0)
    assert cohort([*system[:5], 99]) == (5, 5)
    assert cohort([99]) == (0, 0)


@pytest.mark.parametrize(
    ("options", "num_reused"),
    [
        ({}, 10),
        ({"radix_config": RadixConfig(token_granular=False)}, 8),
        ({"use_eagle": True}, 4),
    ],
)
def test_how_much_of_a_prefix_is_reused(options: dict[str, Any], num_reused: int) -> None:
    """As much as a request gets that is admitted."""
    manager = make_manager(**options)
    cached = make_request([1] * 12)
    blocks, num_hit, _ = manager.get_computed_blocks(cached)
    manager.allocate_slots(cached, 12, num_hit, blocks)
    manager.new_step_starts()
    probe = TreeProbe(manager)
    request = make_request([1] * 10 + [2] * 5)
    prefix = probe.find(request)
    assert prefix is not None and prefix.num_tokens == 10
    assert probe.num_reused(prefix) == num_reused == manager.get_computed_blocks(request)[1]


@pytest.mark.parametrize(
    ("num_reused", "cached", "num_to_encode"),
    [
        (0, (), 3),
        (0, ("cat",), 2),
        (0, ("cat", "dog", "clip"), 0),
        (2, (), 3),
        (5, (), 3),
        (6, (), 3),
        # The cat comes once more at the end.
        (12, (), 2),
        (15, (), 2),
        # Of the clip, text alone is left.
        (16, (), 1),
        (18, (), 1),
        (21, (), 1),
        (21, ("cat",), 0),
        (22, (), 0),
    ],
)
def test_what_has_to_be_encoded(
    num_reused: int, cached: tuple[str, ...], num_to_encode: int
) -> None:
    """Each item once that is needed for what is not reused, and is not in the encoder cache."""
    mask = torch.tensor([False, True, True, True, False, False])
    clip = MultiModalFeatureSpec(
        data=None,
        modality="video",
        identifier="clip",
        mm_position=PlaceholderRange(offset=12, length=6, is_embed=mask),
    )
    items = [image("cat", 2, 4), image("dog", 6, 4), clip, image("cat", 18, 4)]
    request = make_request([1] * 24, mm_features=items)
    assert lane.num_to_encode(request, num_reused, frozenset(cached)) == num_to_encode


def test_what_is_in_the_encoder_cache() -> None:
    manager = EncoderCacheManager(100)
    probe = EncoderCacheProbe(lambda: manager)
    assert set(probe.identifiers()) == set()
    request = make_request([1] * 24, mm_features=[image("cat", 2, 4), image("dog", 6, 4)])
    manager.allocate(request, 1)
    assert set(probe.identifiers()) == {"dog"}
    manager.free(request)
    assert set(probe.identifiers()) == {"dog"}
    manager.reset()
    assert set(probe.identifiers()) == set()


def test_an_encoder_cache_manager_that_keeps_nothing() -> None:
    assert set(EncoderCacheProbe(object).identifiers()) == set()
