# SPDX-License-Identifier: Apache-2.0
"""Requests with items in their prompts (images, videos, sounds), and what of them is reused."""

from collections.abc import Sequence
from typing import Any

from .conftest import EngineFactory, cached
from .engines import KINDS, Answer, Ask, Item, Kind, assert_same, ideal_reuse
from .models import ITEM
from .prompts import tokens, whole_blocks


def ask(*parts: Item | Sequence[int], **options: Any) -> Ask:
    """A request whose prompt is made of texts and items."""
    prompt: tuple[int, ...] = ()
    for part in parts:
        prompt += tuple(part) if isinstance(part, Sequence) else (ITEM,)
    items = tuple(part for part in parts if not isinstance(part, Sequence))
    return Ask(prompt, items=items, **options)


def text(seed: int | str, length: int) -> tuple[int, ...]:
    return tokens(f"items {seed}", length)


def at_most(kind: Kind, asked: Ask, shared: int, block_size: int) -> int:
    """How many of `shared` positions a request reuses.

    Inside an item we go on between two blocks alone, and nowhere if it is made of several that lie
    over one another. Stock goes on between two blocks, wherever that is.
    """
    if kind == "stock":
        return whole_blocks(shared, block_size)
    parts = (*asked.positions(), None)

    def can_go_on(at: int) -> bool:
        part = parts[at]
        if not isinstance(part, tuple) or part[1] == 0:
            return True
        return at % block_size == 0 and len({*part[0].layout()} - {None}) == 1

    step = 1 if kind == "radix" else block_size
    return max(filter(can_go_on, range(0, shared + 1, step)))


def encodes(asked: Ask, num_cached: int) -> int:
    """How many items are needed for what is not cached; embeddings pass for encoded, too."""
    parts = [part for part in asked.positions()[num_cached:] if isinstance(part, tuple)]
    return len({item.layout()[number] for item, number in parts} - {None})


def apart(
    engine: EngineFactory,
    asks: Sequence[Ask],
    args: dict[str, Any],
    kinds: Sequence[Kind] = tuple(KINDS),
) -> None:
    """Run requests one by one on engines of all `kinds`, and forget after each what was encoded.

    Each must reuse what there is, and nothing is encoded but what it does not reuse.
    """
    answers: dict[Kind, list[Answer]] = {}
    encoded: dict[Kind, list[int]] = {}
    for kind in kinds:
        eng = engine(kind, **args)
        answers[kind], encoded[kind] = [], []
        for asked in asks:
            eng.llm.reset_encoder_cache()
            eng.totals.encoded = 0
            answers[kind] += eng.run([asked])
            encoded[kind].append(eng.totals.encoded)
    shared = ideal_reuse(asks, answers["off"])
    for kind in kinds:
        assert_same(answers["off"], answers[kind])
        expected = [0] * len(asks)
        if kind != "off":
            pairs = zip(asks, shared, strict=True)
            expected = [at_most(kind, asked, n, args["block_size"]) for asked, n in pairs]
        assert cached(answers[kind]) == expected, kind
        assert encoded[kind] == [encodes(a, n) for a, n in zip(asks, expected, strict=True)], kind
