# SPDX-License-Identifier: Apache-2.0
"""What of a request decides whose KV it may share."""

import random
from itertools import combinations

import pytest
import torch
from scheduling.factory import BLOCK_SIZE, image, lora, make_request
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.v1.request import Request

from vllm_radix.cache.request_key import RequestKeys
from vllm_radix.tree import Key, Namespace, RadixTree, pack_tokens

PROMPT = list(range(100, 120))


@pytest.fixture
def keys() -> RequestKeys:
    return RequestKeys(BLOCK_SIZE, RadixTree(BLOCK_SIZE, 1000))


def num_shared(a: Key, b: Key) -> int:
    """How many leading tokens of two keys are the same, if they may share at all."""
    if a.namespace != b.namespace:
        return 0
    pairs = zip(a.tokens, b.tokens, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))


def test_the_key_of_text_is_its_tokens(keys: RequestKeys) -> None:
    key = keys.key(make_request(PROMPT))
    assert list(key.tokens) == PROMPT
    assert key.namespace == Namespace(None, None)


def test_a_key_follows_its_request(keys: RequestKeys) -> None:
    request = make_request(PROMPT)
    assert len(keys.key(request)) == 20
    request.append_output_token_ids([7, 8])
    assert list(keys.key(request).tokens) == [*PROMPT, 7, 8]
    assert keys.data(request, 19, 22) == pack_tokens([PROMPT[19], 7, 8])
    request.append_output_token_ids(9)
    assert keys.data(request, 20, 23) == pack_tokens([7, 8, 9])
    assert list(keys.key(request).tokens) == [*PROMPT, 7, 8, 9]


def test_a_request_of_the_same_name_starts_anew(keys: RequestKeys) -> None:
    first = make_request(PROMPT, "again")
    assert list(keys.key(first).tokens) == PROMPT
    keys.forget(first)
    second = make_request(PROMPT[::-1], "again")
    assert list(keys.key(second).tokens) == PROMPT[::-1]


def test_namespaces_are_kept_apart(keys: RequestKeys) -> None:
    """Whatever could be joined, cut or left out to look alike."""
    differing = [
        make_request(PROMPT),
        make_request(PROMPT, cache_salt=""),
        make_request(PROMPT, cache_salt="a"),
        make_request(PROMPT, cache_salt="ab"),
        make_request(PROMPT, cache_salt="None"),
        make_request(PROMPT, lora_request=lora("a", 1)),
        make_request(PROMPT, lora_request=lora("ab", 2)),
        make_request(PROMPT, lora_request=lora("a", 1), cache_salt=""),
        make_request(PROMPT, lora_request=lora("a", 1), cache_salt="b"),
        make_request(PROMPT, lora_request=lora("ab", 2), cache_salt="b"),
        make_request(PROMPT, lora_request=lora("ab", 2), cache_salt="a"),
    ]
    for one, other in combinations(differing, 2):
        assert num_shared(keys.key(one), keys.key(other)) == 0


def test_the_same_salt_and_adapter_share(keys: RequestKeys) -> None:
    one, other = (make_request(PROMPT, lora_request=lora("a", 1), cache_salt="b") for _ in range(2))
    assert num_shared(keys.key(one), keys.key(other)) == 20


@pytest.mark.parametrize(
    "other", [lora("a", 2, "/a"), lora("a", 1, "/new"), lora("b", 1, "/a")], ids=repr
)
def test_an_adapter_that_differs_in_any_way_is_another(keys: RequestKeys, other: object) -> None:
    first = make_request(PROMPT, lora_request=lora("a", 1, "/a"))
    second = make_request(PROMPT, lora_request=other)
    assert num_shared(keys.key(first), keys.key(second)) == 0


def test_a_reloaded_adapter_is_another(keys: RequestKeys) -> None:
    requests = [make_request(PROMPT, lora_request=lora("a", 1)) for _ in range(3)]
    seen = []
    for request in requests:
        # Asked for before the reload, as for a request that waits.
        keys.key(request)
        seen.append(keys.key(requests[0]))
        keys.adapter_reloaded(1)
    for one, other in combinations([*seen, keys.key(requests[0])], 2):
        assert num_shared(one, other) == 0


def test_a_reload_concerns_nobody_else(keys: RequestKeys) -> None:
    text, other = make_request(PROMPT), make_request(PROMPT, lora_request=lora("b", 2))
    before = keys.key(text), keys.key(other)
    keys.adapter_reloaded(1)
    assert num_shared(keys.key(text), before[0]) == 20
    assert num_shared(keys.key(other), before[1]) == 20


def with_items(*items: MultiModalFeatureSpec, prompt: list[int] | None = None) -> Request:
    return make_request(prompt or [9] * 20, mm_features=list(items))


def test_the_same_image_at_the_same_place_shares(keys: RequestKeys) -> None:
    one, other = (with_items(image("cat", 3, 6)) for _ in range(2))
    assert num_shared(keys.key(one), keys.key(other)) == 20


def test_other_images_do_not_share_whatever_their_placeholders(keys: RequestKeys) -> None:
    """They share the text before the first image that differs, and no more."""
    one = keys.key(with_items(image("cat", 3, 6), image("dog", 12, 4)))
    assert num_shared(one, keys.key(with_items(image("cow", 3, 6), image("dog", 12, 4)))) == 3
    assert num_shared(one, keys.key(with_items(image("cat", 3, 6), image("cow", 12, 4)))) == 12
    assert num_shared(one, keys.key(with_items(image("dog", 3, 6), image("cat", 12, 4)))) == 3


def test_the_same_image_at_another_place_does_not_share(keys: RequestKeys) -> None:
    one = keys.key(with_items(image("cat", 3, 6)))
    assert num_shared(one, keys.key(with_items(image("cat", 4, 6)))) == 3
    assert num_shared(one, keys.key(with_items(prompt=[9] * 20))) == 3


def test_identifiers_are_compared_whole(keys: RequestKeys) -> None:
    digest = "0123456789abcdef" * 4
    one = keys.key(with_items(image(digest, 0, 8)))
    for other in (digest[:-1], digest[:-1] + "0", digest.upper(), "1" + digest[1:]):
        assert num_shared(one, keys.key(with_items(image(other, 0, 8)))) == 0


def test_items_that_lie_over_one_another_all_count(keys: RequestKeys) -> None:
    """The audio of a video interleaves with it, in one span."""

    def clip(video: str, audio: str) -> Key:
        return keys.key(with_items(image(video, 2, 10), image(audio, 2, 10)))

    one = clip("video", "audio")
    assert num_shared(one, clip("video", "audio")) == 20
    assert num_shared(one, clip("video", "other audio")) == 2
    assert num_shared(one, clip("other video", "audio")) == 2
    # Nor may another audio of another video, whatever labels those have had.
    assert num_shared(one, clip("audio", "video")) == 2


def test_text_inside_the_span_of_an_item_counts(keys: RequestKeys) -> None:
    """Time stamps between the frames of a video, row ends of an image."""

    def with_text(token: int) -> Key:
        prompt = [9] * 20
        prompt[5] = token
        spread = PlaceholderRange(
            offset=2, length=8, is_embed=torch.tensor([True] * 3 + [False] + [True] * 4)
        )
        item = MultiModalFeatureSpec(
            data=None, modality="video", identifier="clip", mm_position=spread
        )
        return keys.key(with_items(item, prompt=prompt))

    assert num_shared(with_text(50), with_text(50)) == 20
    assert num_shared(with_text(50), with_text(51)) <= 5


def test_placeholders_never_look_like_tokens(keys: RequestKeys) -> None:
    key = keys.key(with_items(image("cat", 3, 6)))
    assert all(token < 0 for token in key.tokens[3:9])
    assert all(token >= 0 for token in [*key.tokens[:3], *key.tokens[9:]])


def test_parts_of_a_key_fit_together(keys: RequestKeys) -> None:
    """The decoder's blocks are packed one by one, and must continue what the prefill packed."""
    items = [image("cat", 3, 6), image("dog", 12, 6)]
    whole = keys.key(with_items(*items)).data
    request = with_items(*items)
    parts = [keys.data(request, start, start + 4) for start in range(0, 20, 4)]
    assert b"".join(parts) == whole


def test_images_that_nobody_uses_are_forgotten() -> None:
    tree = RadixTree(BLOCK_SIZE, 10)
    keys = RequestKeys(BLOCK_SIZE, tree)
    kept = with_items(image("kept", 0, 4))
    tree.extend(tree.enter(keys.namespace(kept)), keys.data(kept, 0, 4), [1])
    label = keys.key(kept).tokens[0]
    for number in range(5000):
        request = with_items(image(f"image {number}", 0, 4))
        keys.key(request)
        keys.forget(request)
    assert len(keys._labels) < 2100
    assert keys.key(with_items(image("kept", 0, 4))).tokens[0] == label


def test_a_million_images_through_a_small_pool() -> None:
    """The table holds what is cached and what is being made, and waits for a sweep to forget."""
    num_images, num_blocks = 1000, 600
    tree = RadixTree(BLOCK_SIZE, num_blocks)
    keys = RequestKeys(BLOCK_SIZE, tree)
    free = list(range(num_blocks))
    items = [image("", place, 2) for place in range(0, 2 * num_images, 2)]
    prompt = [9] * (2 * num_images)
    num_missing = len(prompt) // BLOCK_SIZE
    for number in range(1000):
        for item in items:
            item.identifier = f"{number}/{item.mm_position.offset}"
        request = with_items(*items, prompt=prompt)
        key = keys.key(request)
        free += tree.evict(num_missing - len(free))
        blocks = [free.pop() for _ in range(num_missing)]
        tree.release(tree.extend(tree.enter(key.namespace), key.data, blocks).node)
        keys.forget(request)
        num_cached = tree.num_cached_blocks * BLOCK_SIZE // 2
        assert num_cached <= 1200
        assert len(keys._labels) <= 2 * (num_cached + num_images)
    again = keys.key(with_items(*items, prompt=prompt))
    assert tree.match(again).num_tokens == len(prompt)


def test_images_of_waiting_requests_are_kept(keys: RequestKeys) -> None:
    """What a request computes is found by others, however many images came while it waited."""
    waiting = with_items(image("cat", 0, 20))
    label = keys.key(waiting).tokens[0]
    for number in range(5000):
        request = with_items(image(f"image {number}", 0, 4))
        keys.key(request)
        keys.forget(request)
    assert len(keys._labels) < 2100
    assert keys.key(with_items(image("cat", 0, 20))).tokens[0] == label


def test_what_is_cached_of_items_over_one_another_is_found_after_a_sweep() -> None:
    tree = RadixTree(BLOCK_SIZE, 10)
    keys = RequestKeys(BLOCK_SIZE, tree)
    clips = {
        "video": with_items(image("video", 0, 20), image("audio", 0, 20)),
        "embeds": make_request(
            [9] * 20, prompt_embeds=torch.ones(20, 8), mm_features=[image("video", 0, 20)]
        ),
    }
    for blocks, request in zip(([0, 1, 2, 3, 4], [5, 6, 7, 8, 9]), clips.values(), strict=True):
        key = keys.key(request)
        tree.release(tree.extend(tree.enter(key.namespace), key.data, blocks).node)
        keys.forget(request)
    for number in range(5000):
        request = with_items(image(f"image {number}", 0, 4))
        keys.key(request)
        keys.forget(request)
    assert len(keys._labels) < 2100
    for request in clips.values():
        assert tree.match(keys.key(request)).num_tokens == 20


def test_token_ids_that_look_like_labels_are_none(keys: RequestKeys) -> None:
    """vLLM lets a client without a tokenizer send any number."""
    seen = keys.key(with_items(image("cat", 0, 20), image("dog", 12, 4)))
    labels = list(seen.tokens)
    for forged in ([-1] * 20, [-2] * 20, labels, list(reversed(labels)), list(range(-20, 0))):
        key = keys.key(make_request(forged))
        assert num_shared(key, seen) == 0
        assert num_shared(key, keys.key(make_request(forged))) == 20
    inside = keys.key(with_items(image("cat", 0, 20), prompt=[labels[0]] * 20))
    assert num_shared(inside, seen) == num_shared(inside, keys.key(make_request(labels))) == 0


def test_what_is_decoded_after_an_image_is_text(keys: RequestKeys) -> None:
    """Even if the model says what stands for images in prompts."""
    request = with_items(image("cat", 12, 8))
    whole = keys.key(request).data
    request.append_output_token_ids([9] * 8)
    assert keys.data(request, 20, 28) == pack_tokens([9] * 8)
    assert keys.data(request, 12, 28) == whole[12 * 4 :] + pack_tokens([9] * 8)


@pytest.mark.parametrize("seed", range(5))
def test_random_items_share_what_they_have_in_common_and_nothing_else(seed: int) -> None:
    """While labels are forgotten at once, and have to be given out again and again."""
    rng = random.Random(seed)
    tree = RadixTree(BLOCK_SIZE, 24)
    keys = RequestKeys(BLOCK_SIZE, tree)
    labels = keys._labels
    labels.MIN_SIZE_TO_SWEEP = labels._sweep_at = 1
    labels.LOWEST = -120
    free = list(range(24))
    # What stands at the positions of a prompt up to the end of each cached block.
    cached: dict[int, list[object]] = {}
    waiting: list[Request] = []

    def contents(request: Request) -> list[object]:
        assert request.prompt_token_ids is not None
        return [
            (token, *(i.identifier for i in request.mm_features if at in position_of(i)))
            for at, token in enumerate(request.prompt_token_ids)
        ]

    def position_of(item: MultiModalFeatureSpec) -> range:
        start = item.mm_position.offset
        return range(start, start + item.mm_position.length)

    def common(a: list[object], b: list[object]) -> int:
        pairs = zip(a, b, strict=False)
        return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))

    for _ in range(1500):
        if len(waiting) < 4:
            first = rng.randrange(3)
            items = [image(str(rng.randrange(9)), first, rng.randint(1, 12 - first))]
            if rng.random() < 0.3:
                items.append(image(str(rng.randrange(9)), first, items[0].mm_position.length))
            waiting.append(with_items(*items, prompt=rng.choices((7, 8), (9, 1), k=12)))
            keys.key(waiting[-1])
        request = waiting[rng.randrange(len(waiting))]
        key, standing = keys.key(request), contents(request)
        longest = max((common(standing, known) for known in cached.values()), default=0)
        assert tree.match(key).num_tokens == longest
        if rng.random() < 0.5:
            waiting.remove(request)
            evicted = tree.evict(max(0, 3 - len(free)))
            free += evicted
            for block in evicted:
                del cached[block]
            blocks = [free.pop() for _ in range(3)]
            extension = tree.extend(tree.enter(key.namespace), key.data, blocks)
            returned = [*tree.release(extension.node), *extension.freed]
            returned += blocks[: extension.num_duplicates]
            for number, block in enumerate(blocks, 1):
                if block not in returned:
                    cached[block] = standing[: number * BLOCK_SIZE]
            for block in extension.replaced:
                del cached[block]
            free += [*returned, *extension.replaced]
            keys.forget(request)
        assert len(labels) <= 120


def test_runs_of_tokens_inside_an_item(keys: RequestKeys) -> None:
    """Whatever an item is made of: equal tokens get equal labels, and nothing else does."""
    rng = random.Random(1)
    for _ in range(200):
        prompt = rng.choices(range(rng.randint(1, 5)), k=rng.randint(1, 20))
        key = keys.key(with_items(image("clip", 0, len(prompt)), prompt=prompt))
        for (one, a), (other, b) in combinations(zip(prompt, key.tokens, strict=True), 2):
            assert a < 0 and b < 0
            assert (a == b) == (one == other)


def with_embeds(rows: torch.Tensor, tokens: list[int] | None = None) -> Request:
    mask = None if tokens is None else [token != 0 for token in tokens]
    return make_request(tokens, prompt_embeds=rows, prompt_is_token_ids=mask)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_embeddings_share_only_whole_blocks_of_equal_rows(
    keys: RequestKeys, dtype: torch.dtype
) -> None:
    rows = torch.arange(20 * 8).reshape(20, 8).to(dtype)
    one = keys.key(with_embeds(rows))
    assert num_shared(one, keys.key(with_embeds(rows.clone()))) == 20
    for differing in (0, 5, 10, 19):
        changed = rows.clone()
        changed[differing, 3] += 64
        block = differing // BLOCK_SIZE * BLOCK_SIZE
        assert num_shared(one, keys.key(with_embeds(changed))) == block


def test_embeddings_are_not_tokens(keys: RequestKeys) -> None:
    zeros = keys.key(with_embeds(torch.zeros(20, 8)))
    assert num_shared(zeros, keys.key(make_request([0] * 20))) == 0


def test_tokens_among_embeddings_count(keys: RequestKeys) -> None:
    rows = torch.zeros(8, 8)
    one = keys.key(with_embeds(rows, [5, 6, 0, 0, 7, 0, 0, 0]))
    assert num_shared(one, keys.key(with_embeds(rows, [5, 6, 0, 0, 7, 0, 0, 0]))) == 8
    assert num_shared(one, keys.key(with_embeds(rows, [5, 6, 0, 0, 8, 0, 0, 0]))) == 4
    assert num_shared(one, keys.key(with_embeds(rows, [4, 6, 0, 0, 7, 0, 0, 0]))) == 0


def test_what_follows_embeddings_is_tokens(keys: RequestKeys) -> None:
    rows = torch.ones(6, 8)
    one, other = with_embeds(rows), with_embeds(rows)
    one.append_output_token_ids([1, 2, 3])
    other.append_output_token_ids([1, 2, 4])
    assert num_shared(keys.key(one), keys.key(other)) == 8
    assert keys.data(one, 0, 8) == keys.key(one).data[: 8 * 4]
