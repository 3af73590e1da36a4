# SPDX-License-Identifier: Apache-2.0
"""The KV cache manager as vLLM's scheduler calls it, without the scheduler."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scheduling.factory import (
    BLOCK_SIZE,
    full_attention,
    image,
    lora,
    make_manager,
    make_request,
    sliding_window,
)
from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, MLAAttentionSpec
from vllm.v1.request import Request

from vllm_radix.cache.manager import (
    MatchedBlocks,
    RadixKVCacheManager,
    why_unsupported,
)
from vllm_radix.config import RadixConfig

WHOLE_BLOCKS = RadixConfig(token_granular=False)
TWELVE = list(range(12))


def num_used(manager: RadixKVCacheManager) -> int:
    return manager.block_pool.num_gpu_blocks - 1 - manager.block_pool.get_num_free_blocks()


def admit(
    manager: RadixKVCacheManager, request: Request, num_tokens: int | None = None
) -> int | None:
    """Admit a request and compute its prompt, or ``num_tokens`` of it; returns the hit's tokens.

    None if there is no room.
    """
    blocks, num_hit, _ = manager.get_computed_blocks(request)
    num_new = (request.num_tokens if num_tokens is None else num_tokens) - num_hit
    if manager.allocate_slots(request, num_new, num_hit, blocks) is None:
        return None
    request.num_computed_tokens = num_hit + num_new
    # What the scheduler does at the end of a step.
    copies, retained = manager.take_kv_cache_block_copies()
    assert len(copies) == (num_hit % BLOCK_SIZE > 0)
    manager.block_pool.free_blocks(retained)
    manager.block_pool.check()
    return num_hit


def finish(manager: RadixKVCacheManager, *requests: Request) -> None:
    for request in requests:
        manager.keep_computed_tokens(request)
        manager.free(request)
        manager.new_step_starts()
        manager.block_pool.check()


def run(manager: RadixKVCacheManager, request: Request) -> int | None:
    num_hit = admit(manager, request)
    finish(manager, request)
    return num_hit


def num_hit(manager: RadixKVCacheManager, request: Request) -> int:
    return manager.get_computed_blocks(request)[1]


def ids(manager: RadixKVCacheManager, request: Request) -> list[int]:
    return manager.get_block_ids(request.request_id)[0]


# ---------------------------------------------------------------------- hits


@pytest.mark.parametrize("num_tokens", range(1, 14))
def test_a_resent_prompt_computes_at_least_one_token(num_tokens: int) -> None:
    """Also if its length is a multiple of the block size."""
    manager = make_manager(radix_config=WHOLE_BLOCKS)
    prompt = [*TWELVE, 12, 13]
    assert run(manager, make_request(prompt[:num_tokens])) == 0
    for _ in range(2):
        again = make_request(prompt[:num_tokens])
        assert run(manager, again) == (num_tokens - 1) // BLOCK_SIZE * BLOCK_SIZE
    # The chain is intact: whoever has one token more gets all of it.
    longer = make_request([*prompt[:num_tokens], 99])
    assert num_hit(manager, longer) == num_tokens // BLOCK_SIZE * BLOCK_SIZE


@pytest.mark.parametrize("num_tokens", range(1, 14))
def test_with_token_granularity_a_resent_prompt_computes_one_token(num_tokens: int) -> None:
    manager = make_manager()
    prompt = [*TWELVE, 12, 13][:num_tokens]
    assert run(manager, make_request(prompt)) == 0
    for _ in range(2):
        assert run(manager, make_request(prompt)) == num_tokens - 1
    assert num_hit(manager, make_request([*prompt, 99])) == num_tokens


def test_with_a_drafter_that_has_kv_of_its_own_a_match_is_whole_blocks() -> None:
    """Whatever the options say; and the last of them is computed again."""
    manager = make_manager(use_eagle=True)
    run(manager, make_request(TWELVE))
    assert num_hit(manager, make_request([*TWELVE[:11], 99])) == 4


def test_of_several_blocks_the_one_that_shares_most_is_copied() -> None:
    manager = make_manager()
    admitted = [make_request([*TWELVE[:8], *end]) for end in ([8, 0], [8, 9, 0], [8, 9, 10], [7])]
    for request in admitted:
        run(manager, request)
    again = make_request([*TWELVE[:8], 8, 9, 10, 99])
    blocks, num_tokens, _ = manager.get_computed_blocks(again)
    assert num_tokens == 11
    (matched,) = blocks.blocks
    assert isinstance(matched, MatchedBlocks)
    assert matched.source is not None and matched.source.end == 11
    assert manager._tree.match_of_block(matched.source.block).num_tokens == 11


def test_a_probe_changes_nothing() -> None:
    manager = make_manager(num_blocks=1 + 6, radix_config=WHOLE_BLOCKS)
    run(manager, make_request(TWELVE))
    run(manager, make_request([50, 51, 52, 53, 54]))
    for _ in range(3):
        assert num_hit(manager, make_request(TWELVE)) == 8
    assert num_used(manager) == 0
    # The probed prefix is the older one still, and goes first.
    admit(manager, make_request([60] * 9))
    admit(manager, make_request([70] * 4))
    assert num_hit(manager, make_request([50, 51, 52, 53, 54])) == 4
    assert num_hit(manager, make_request(TWELVE)) < 8


def test_a_longer_lookup_may_reach_the_last_token() -> None:
    manager = make_manager(radix_config=WHOLE_BLOCKS)
    run(manager, make_request(TWELVE))
    assert manager.get_computed_blocks(make_request(TWELVE), max_cache_hit_length=12)[1] == 12
    assert manager.get_computed_blocks(make_request(TWELVE), max_cache_hit_length=7)[1] == 4


@pytest.mark.parametrize("sampling", [{"prompt_logprobs": 1}, {"skip_reading_prefix_cache": True}])
def test_a_request_that_must_not_read_the_cache_fills_it(sampling: dict[str, int]) -> None:
    manager = make_manager()
    run(manager, make_request(TWELVE))
    assert run(manager, make_request(TWELVE, sampling=sampling)) == 0
    assert manager.prefix_cache_stats is not None
    other = [30 + token for token in TWELVE]
    assert run(manager, make_request(other, sampling=sampling)) == 0
    assert run(manager, make_request(other)) == 11


@pytest.mark.parametrize(
    "options", [{}, {"use_eagle": True}, {"num_prefill_lookahead": 3}], ids=str
)
def test_hits_are_as_long_as_on_stock(options: dict[str, Any]) -> None:
    """A drafter with KV of its own has the last block of a hit computed again."""
    ours = make_manager(num_blocks=1000, radix_config=WHOLE_BLOCKS, **options)
    stock = KVCacheManager(
        config_of(full_attention(), num_blocks=1000),
        max_model_len=512,
        scheduler_block_size=BLOCK_SIZE,
        hash_block_size=BLOCK_SIZE,
        **options,
    )
    rng = random.Random(0)
    stems = [[rng.randrange(9) for _ in range(40)] for _ in range(3)]
    hits = []
    for _ in range(60):
        prompt = rng.choice(stems)[: rng.randint(1, 40)] + [7] * rng.randint(0, 2)
        for manager in (ours, stock):
            request = make_request(prompt, hashed=True)
            blocks, num_tokens, _ = manager.get_computed_blocks(request)
            num_new = request.num_tokens - num_tokens
            assert manager.allocate_slots(request, num_new, num_tokens, blocks) is not None
            request.num_computed_tokens = request.num_tokens
            hits.append(num_tokens)
            manager.free(request)
    assert hits[::2] == hits[1::2]
    assert len(set(hits)) > 5


def test_only_what_differs_is_computed() -> None:
    manager = make_manager(radix_config=WHOLE_BLOCKS)
    run(manager, make_request(TWELVE))
    assert run(manager, make_request([*TWELVE[:9], 77, 77, 77, 77])) == 8
    assert run(manager, make_request([77, *TWELVE[1:]])) == 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"cache_salt": "a"}, {}),
        ({"cache_salt": "a"}, {"cache_salt": "b"}),
        ({"cache_salt": ""}, {}),
        ({"cache_salt": "l"}, {"lora_request": lora("l", 1)}),
        ({"lora_request": lora("l", 1)}, {}),
        ({"lora_request": lora("l", 1)}, {"lora_request": lora("l", 2, "/new")}),
        ({"lora_request": lora("l", 1)}, {"lora_request": lora("l", 1, "/new")}),
        ({"lora_request": lora("a", 1), "cache_salt": "bc"}, {"lora_request": lora("ab", 2),
                                                              "cache_salt": "c"}),
        ({"mm_features": [image("cat", 2, 6)]}, {"mm_features": [image("dog", 2, 6)]}),
        ({"mm_features": [image("cat", 2, 6)]}, {"mm_features": [image("cat", 3, 6)]}),
        ({"mm_features": [image("cat", 2, 6)]}, {}),
    ],
)  # fmt: skip
def test_what_is_not_the_same_is_not_shared(one: dict[str, object], other: dict) -> None:
    """In either order of arrival."""
    manager = make_manager()
    assert run(manager, make_request([9] * 12, **one)) == 0
    first = run(manager, make_request([9] * 12, **other))
    assert first is not None and first <= 3 and (first == 0 or "mm_features" in one)
    assert run(manager, make_request([9] * 12, **one)) in (11, 2)
    assert run(manager, make_request([9] * 12, **other)) in (11, 2)


def test_embeddings_are_shared_if_they_are_equal() -> None:
    manager = make_manager(radix_config=WHOLE_BLOCKS)
    rows = torch.rand(12, 8)
    assert run(manager, make_request(None, prompt_embeds=rows)) == 0
    assert run(manager, make_request(None, prompt_embeds=rows.clone())) == 8
    changed = rows.clone()
    changed[5] += 1
    assert run(manager, make_request(None, prompt_embeds=changed)) == 4
    assert run(manager, make_request([0] * 12)) == 0


@given(
    st.lists(st.tuples(st.integers(0, 22), st.integers(1, 12)), max_size=4),
    st.lists(st.integers(0, 33), max_size=3),
    st.integers(1, 30),
    st.booleans(),
)
def test_a_request_goes_on_where_vllm_can(
    spans: list[tuple[int, int]], forks: list[int], longest: int, token_granular: bool
) -> None:
    """Inside no item, or between two blocks inside one item that no other lies over."""
    # As in vLLM, none of them begins inside another and ends before it.
    starts = sorted(start for start, _ in spans)
    ends = sorted(start + length for start, length in spans)
    spans = list(zip(starts, ends, strict=True))
    items = [image(f"item {i}", start, end - start) for i, (start, end) in enumerate(spans)]

    def can_go_on(at: int) -> bool:
        number = sum(start < at < end for start, end in spans)
        return number == 0 or (number == 1 and at % BLOCK_SIZE == 0)

    manager = make_manager(radix_config=RadixConfig(token_granular=token_granular))
    prompt = [9] * 34
    run(manager, make_request(prompt, mm_features=items))
    for at in forks:
        others = [item for item in items if item.mm_position.offset < at]
        run(manager, make_request([*prompt[:at], 7], mm_features=others))
    blocks, num_hit, _ = manager.get_computed_blocks(
        make_request(prompt, mm_features=items), longest
    )
    step = 1 if token_granular else BLOCK_SIZE
    assert num_hit == max(filter(can_go_on, range(0, longest + 1, step)))
    assert len(blocks.blocks[0]) == num_hit // BLOCK_SIZE


def test_a_copy_holds_the_tokens_of_one_block() -> None:
    """Too few of them are left before the items, and further ones are in another block."""
    manager = make_manager(radix_config=RadixConfig(min_partial_tokens=2))
    items = [image("a", 0, 9), image("b", 5, 4), image("c", 9, 11)]
    run(manager, make_request([9] * 34, mm_features=items))
    blocks, num_hit, _ = manager.get_computed_blocks(make_request([9] * 34, mm_features=items), 11)
    assert (num_hit, len(blocks.blocks[0])) == (4, 1)


# ---------------------------------------------------------------------- room


def test_a_match_that_finds_no_room_locks_nothing() -> None:
    """And the next attempt looks up afresh."""
    manager = make_manager(num_blocks=1 + 6)
    run(manager, make_request(TWELVE))
    running = make_request([50] * 12)
    admit(manager, running)
    waiting = make_request([*TWELVE, *range(20, 32)])
    for _ in range(2):
        assert num_hit(manager, waiting) == 12
        assert admit(manager, waiting) is None
        assert num_used(manager) == 3
        assert manager.get_block_ids(waiting.request_id) == ([],)
    # What it matched may go meanwhile, and it must notice.
    growing = make_request([60] * 8)
    assert admit(manager, growing) == 0
    assert num_hit(manager, waiting) == 4
    assert admit(manager, waiting) is None
    finish(manager, running, growing)
    assert num_used(manager) == 0
    assert admit(manager, waiting) == 4
    finish(manager, waiting)
    assert num_used(manager) == 0


def test_what_a_request_matches_does_not_count_as_room_for_it() -> None:
    manager = make_manager(num_blocks=1 + 4, radix_config=WHOLE_BLOCKS)
    run(manager, make_request(TWELVE))
    # Three evictable blocks and a free one: room for 16 tokens, whoever has them.
    assert admit(manager, make_request([*TWELVE, *range(12, 17)])) is None
    assert num_used(manager) == 0
    request = make_request([*TWELVE, *range(12, 16)])
    assert admit(manager, request) == 12
    assert num_used(manager) == 4
    finish(manager, request)


def test_one_block_needed_takes_the_last_block_of_a_chain() -> None:
    manager = make_manager(num_blocks=1 + 4, radix_config=WHOLE_BLOCKS)
    run(manager, make_request(TWELVE))
    assert run(manager, make_request([50] * 3)) == 0
    assert num_hit(manager, make_request([*TWELVE, 0])) == 12
    admit(manager, make_request([60] * 8))
    assert num_hit(manager, make_request([*TWELVE, 0])) == 8


def test_a_request_computing_what_is_cached_keeps_its_own_blocks_and_frees_them_once() -> None:
    manager = make_manager(num_blocks=1 + 8, radix_config=WHOLE_BLOCKS)
    first, second = make_request(TWELVE[:6]), make_request(TWELVE[:6])
    admit(manager, first)
    admit(manager, second)
    tail = TWELVE[6:9]
    for request in (first, second):
        request.append_output_token_ids(tail)
        assert manager.allocate_slots(request, 3) is not None
        request.num_computed_tokens = 9
    own = ids(manager, second)
    assert ids(manager, first)[0] == own[0]
    assert not set(ids(manager, first)[1:]) & set(own[1:])
    finish(manager, first)
    # Nothing of the second's went with the first.
    assert ids(manager, second) == own
    assert all(manager.block_pool.ref_count(block) > 0 for block in own)
    others = make_request([50] * 16)
    assert admit(manager, others) == 0
    assert not set(ids(manager, others)) & set(own)
    finish(manager, second)
    finish(manager, others)
    assert num_used(manager) == 0
    assert num_hit(manager, make_request(TWELVE)) == 8


def test_blocks_given_away_for_later_are_in_use_until_they_are_freed() -> None:
    """As where a step in flight may still write them."""
    manager = make_manager(num_blocks=1 + 4, radix_config=WHOLE_BLOCKS)
    request = make_request(TWELVE[:10])
    admit(manager, request)
    blocks = manager.pop_blocks_for_free(request)
    assert blocks
    assert [block.block_id for block in blocks] == [1, 2, 3]
    assert manager.get_block_ids(request.request_id) == ([],)
    assert num_used(manager) == 3
    assert admit(manager, make_request([50] * 8)) is None
    manager.block_pool.free_blocks(reversed(blocks))
    manager.block_pool.check()
    assert num_used(manager) == 0
    assert num_hit(manager, make_request(TWELVE)) == 8
    assert not manager.pop_blocks_for_free(request)


@pytest.mark.parametrize(
    "free",
    [
        lambda manager, request: manager.free(request),
        lambda manager, request: manager.block_pool.free_blocks(
            reversed(manager.pop_blocks_for_free(request))
        ),
    ],
    ids=["at once", "later"],
)
@pytest.mark.parametrize("num_computed", range(1, 12))
def test_what_was_cached_but_never_computed_is_not_found(
    free: Callable[[RadixKVCacheManager, Request], None], num_computed: int
) -> None:
    """And what was computed is, up to its last token."""
    manager = make_manager()
    request = make_request(TWELVE)
    admit(manager, request)
    # Preempted before its step ran.
    request.num_computed_tokens = num_computed
    manager.keep_computed_tokens(request)
    free(manager, request)
    manager.new_step_starts()
    manager.block_pool.check()
    assert num_used(manager) == 0
    assert num_hit(manager, make_request([*TWELVE, 12])) == num_computed


@pytest.mark.parametrize("num_computed", range(1, 12))
@pytest.mark.parametrize("num_common", [0, 3, 4, 6, 8, 12])
@pytest.mark.parametrize("is_other_first", [False, True])
def test_what_others_computed_stays_when_a_request_did_not(
    num_computed: int, num_common: int, is_other_first: bool
) -> None:
    """Whichever of the two filled the blocks that they have in common."""
    manager = make_manager()
    request = make_request(TWELVE)
    other = make_request([*TWELVE[:num_common], *range(50, 50 + 12 - num_common)])
    nothing = manager.empty_kv_cache_blocks
    for one in (other, request) if is_other_first else (request, other):
        assert manager.allocate_slots(one, 12, 0, nothing) is not None
    other.num_computed_tokens = 12
    request.num_computed_tokens = num_computed
    manager.new_step_starts()
    manager.keep_computed_tokens(request)
    manager.block_pool.check()
    manager.free(request)
    manager.block_pool.check()
    manager.new_step_starts()
    num_full, num_common_full = num_computed // BLOCK_SIZE, num_common // BLOCK_SIZE
    is_shared_copy_gone = not is_other_first and num_full < num_common_full
    # The other has duplicates then of what goes.
    num_left = num_full * BLOCK_SIZE if is_shared_copy_gone else max(num_computed, num_common)
    assert num_hit(manager, make_request([*TWELVE, 12])) == num_left
    finish(manager, other)
    assert num_used(manager) == 0


@pytest.mark.parametrize("num_in_flight", [0, 1, 3])
@pytest.mark.parametrize("num_computed", range(1, 13))
def test_whatever_was_computed_of_the_last_block_stays(
    num_computed: int, num_in_flight: int
) -> None:
    """However the request ended: but for what steps in flight have still to compute."""
    manager = make_manager()
    request = make_request(TWELVE)
    admit(manager, request, num_computed)
    request.num_in_flight_tokens = num_in_flight
    finish(manager, request)
    assert num_used(manager) == 0
    # A full block counts as soon as it is scheduled: the worker runs the steps in their order.
    num_full = num_computed // BLOCK_SIZE * BLOCK_SIZE
    expected = max(num_computed - num_in_flight, num_full)
    assert num_hit(manager, make_request([*TWELVE, 12])) == expected


def test_a_sampled_token_is_not_cached_before_it_is_computed() -> None:
    manager = make_manager()
    request = make_request(TWELVE[:6])
    admit(manager, request)
    request.append_output_token_ids([6])
    finish(manager, request)
    assert num_hit(manager, make_request(TWELVE)) == 6


def test_a_full_block_takes_the_place_of_a_partial_one() -> None:
    manager = make_manager(num_blocks=1 + 8)
    run(manager, make_request(TWELVE[:6]))
    run(manager, make_request(TWELVE[:9]))
    # Two full blocks and the ninth token's are cached; that of the sixth alone is free.
    assert len(manager.block_pool._free) == 5
    assert num_hit(manager, make_request(TWELVE)) == 9


def test_a_request_that_was_never_admitted_can_be_freed() -> None:
    manager = make_manager()
    request = make_request(TWELVE)
    manager.get_computed_blocks(request)
    finish(manager, request)
    assert num_used(manager) == 0


def test_the_lists_of_ids_are_the_callers() -> None:
    """The model runner appends to what it gets."""
    manager = make_manager()
    request = make_request(TWELVE)
    admit(manager, request)
    before = ids(manager, request)
    manager.get_blocks(request.request_id).get_block_ids()[0].append(99)
    assert ids(manager, request) == before
    assert manager.get_blocks(request.request_id).get_block_ids(group_ids=[0]) == (before,)
    assert manager.get_blocks("nobody").get_block_ids(allow_none=True) is None


def test_a_lookup_that_was_cut_short_can_be_used() -> None:
    """vLLM shortens a hit where a connector has more."""
    manager = make_manager(radix_config=WHOLE_BLOCKS)
    run(manager, make_request(TWELVE))
    request = make_request([*TWELVE, 12])
    blocks, num_tokens, _ = manager.get_computed_blocks(request)
    assert num_tokens == 12
    shorter = manager.truncate_computed_blocks(blocks, 8)
    assert isinstance(shorter, KVCacheBlocks)
    assert manager.allocate_slots(request, 5, 8, shorter) is not None
    assert ids(manager, request)[:2] == blocks.get_block_ids()[0][:2]
    request.num_computed_tokens = 13
    finish(manager, request)
    assert num_used(manager) == 0


# ---------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("eviction", "survivor"),
    [("lru", "new"), ("lfu", "popular"), ("slru", "popular"), ("priority", "important")],
)
def test_eviction_follows_the_policy(eviction: str, survivor: str) -> None:
    config = RadixConfig(eviction=eviction, token_granular=False)
    manager = make_manager(num_blocks=1 + 4, radix_config=config)
    prompts = {"important": [1] * 5, "popular": [2] * 5, "new": [3] * 5}
    run(manager, make_request(prompts["important"], priority=-1))
    for _ in range(3):
        run(manager, make_request(prompts["popular"]))
    run(manager, make_request(prompts["new"]))
    admit(manager, make_request([4] * 12))
    found = {name: num_hit(manager, make_request(prompt)) for name, prompt in prompts.items()}
    assert found == {name: 4 * (name == survivor) for name in prompts}


def test_the_watermark_keeps_blocks_free_ahead_of_need() -> None:
    config = RadixConfig(free_watermark=0.5, token_granular=False)
    manager = make_manager(num_blocks=8, radix_config=config)
    run(manager, make_request(list(range(20))))
    manager.new_step_starts()
    # Four of the eight: two were never used, two are the last of the chain.
    assert num_hit(manager, make_request(list(range(20)))) == 12
    assert num_used(manager) == 0
    # What is in use stays, whatever the watermark wants.
    requests = [make_request([token] * 12) for token in (50, 60)]
    for request in requests:
        admit(manager, request)
    manager.new_step_starts()
    assert [len(ids(manager, request)) for request in requests] == [3, 3]


def test_debug_checks_look_at_every_step() -> None:
    manager = make_manager(radix_config=RadixConfig(debug_checks=True))
    manager.new_step_starts()
    manager.block_pool._free.append(manager.block_pool._free[0])
    with pytest.raises(AssertionError, match="a block is free twice"):
        manager.new_step_starts()


def test_few_tokens_are_not_worth_a_copy() -> None:
    manager = make_manager(radix_config=RadixConfig(min_partial_tokens=3))
    run(manager, make_request(TWELVE))
    assert [num_hit(manager, make_request([*TWELVE[:n], 99])) for n in (9, 10, 11, 12)] == [
        8,
        8,
        11,
        12,
    ]


# ---------------------------------------------------------------------- vLLM's own manager


def config_of(*specs: Any, num_blocks: int = 16) -> KVCacheConfig:
    return KVCacheConfig(
        num_blocks=num_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec([f"layer.{i}"], spec) for i, spec in enumerate(specs)],
    )


def mla() -> MLAAttentionSpec:
    return MLAAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32)


@pytest.mark.parametrize(
    ("config", "enable_caching", "reason"),
    [
        (config_of(full_attention()), True, None),
        (config_of(mla()), True, None),
        (config_of(full_attention()), False, "prefix caching is off"),
        (config_of(sliding_window()), True, "SlidingWindowSpec"),
        (config_of(full_attention(), sliding_window()), True, "2 KV cache groups"),
        (config_of(), True, "0 KV cache groups"),
    ],
    ids=["full attention", "MLA", "caching off", "sliding window", "hybrid", "no KV cache"],
)
def test_who_serves_which_model(
    config: KVCacheConfig, enable_caching: bool, reason: str | None
) -> None:
    why = why_unsupported(config, enable_caching=enable_caching)
    assert (why is None) == (reason is None)
    assert reason is None or (why is not None and reason in why)
    if not config.kv_cache_groups:
        return  # vLLM itself serves that only with prefix caching off
    manager = RadixKVCacheManager(
        config,
        max_model_len=64,
        scheduler_block_size=BLOCK_SIZE,
        hash_block_size=BLOCK_SIZE,
        enable_caching=enable_caching,
    )
    assert type(manager) is (KVCacheManager if reason else RadixKVCacheManager)
