# SPDX-License-Identifier: Apache-2.0
"""Images: right answers, exactly the reuse that there should be, and no image encoded in vain."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.hooks import RemovableHandle

from . import models
from .asynchronous import asynchronous_cpu
from .conftest import EngineFactory
from .engines import LOGPROB_TOLERANCE, Ask, Kind, assert_same, max_difference
from .images import Picture
from .items import apart, ask, at_most, encodes, text

pytestmark = pytest.mark.engine

A, B = Picture(1), Picture(2)
WIDE, TALL = Picture(3, 128, 64), Picture(4, 64, 128)


@pytest.fixture(scope="session")
def idefics3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.tiny_idefics3(tmp_path_factory.mktemp("tiny-idefics3"))


@pytest.fixture(params=[16, 32])
def args(request: pytest.FixtureRequest, idefics3: Path) -> dict[str, Any]:
    """Of the engines."""
    return {"model": idefics3, "block_size": request.param}


def test_one_other_image_shows(engine: EngineFactory, idefics3: Path) -> None:
    """KV of another image, or of one elsewhere, moves the logprobs far beyond the tolerance."""
    off = engine("off", model=idefics3)
    end = text("end", 40)
    right = off.run([ask((5,), A, (6,), B, end, max_tokens=4)])
    for wrong in (
        ask((5,), B, (6,), B, end),
        ask((5,), B, (6,), A, end),
        ask((5, 6), A, B, end),
        ask((5,), A, (6,), replace(B, seed=9), end),
    ):
        other = off.run([replace(wrong, max_tokens=4)])
        first = [run[0].logprobs[0][:1] for run in (right, other)]
        assert max_difference(*first) > 50 * LOGPROB_TOLERANCE


CASES: dict[str, list[Ask]] = {
    "same image": [
        ask(text(0, 20), A, text(1, 10)),
        ask(text(0, 20), A, text(1, 10)),
        ask(text(0, 20), A, text(2, 25)),
        ask(text(0, 20), A, text(1, 10), text(3, 30)),
    ],
    "other image": [
        ask(text(0, 20), A, text(1, 10)),
        ask(text(0, 20), B, text(1, 10)),
        ask(text(0, 20), WIDE, text(1, 10)),
        ask(text(0, 20), TALL, text(1, 10)),
        ask(text(0, 20), B, text(2, 10)),
    ],
    "other place": [
        ask(text(0, 20), A, text(1, 10)),
        ask(text(0, 19), A, text(1, 10)),
        ask(text(0, 20), text(3, 16), A, text(1, 10)),
        ask(A, text(1, 10)),
        ask(A, text(1, 9)),
    ],
    "in a row": [
        ask(text(0, 5), A, text(1, 10)),
        ask(text(0, 5), A, A, text(1, 10)),
        ask(text(0, 5), A, A, A, text(1, 10)),
        ask(text(0, 5), A, B, A, text(1, 10)),
        ask(text(0, 5), A, A, B, text(1, 10)),
    ],
    "swapped": [
        ask(text(0, 20), A, text(1, 4), B, text(2, 10)),
        ask(text(0, 20), B, text(1, 4), A, text(2, 10)),
        ask(text(0, 20), A, text(1, 4), B, text(2, 11)),
        ask(WIDE, TALL),
        ask(TALL, WIDE),
    ],
    "last": [
        ask(text(0, 20), A),
        ask(text(0, 20), A),
        ask(text(0, 20), A, A),
        ask(text(0, 20), WIDE),
        ask(text(0, 20), WIDE),
    ],
    "embeddings": [
        ask(text(0, 20), Picture(1, embedded=True), text(1, 10)),
        ask(text(0, 20), Picture(1, embedded=True), text(1, 12)),
        ask(text(0, 20), Picture(2, embedded=True), text(1, 10)),
        ask(text(0, 21), Picture(1, embedded=True), text(1, 10)),
        ask(text(0, 20), Picture(1, embedded=True), Picture(2, embedded=True)),
        ask(text(0, 20), Picture(1, embedded=True), Picture(2, embedded=True)),
        ask(text(0, 20), A, text(1, 10)),
    ],
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_reused(engine: EngineFactory, args: dict[str, Any], case: str) -> None:
    """Through the same images at the same places, and as far as the first that differs."""
    apart(engine, CASES[case], args)


def test_identifiers_that_begin_alike(engine: EngineFactory, args: dict[str, Any]) -> None:
    """Other images, whose identifiers share all bytes but the last, or are part of one another."""
    digest = "0123456789abcdef" * 4
    names = [digest, digest[:-1] + "0", digest[:-1], digest + "0", digest[:8], digest.upper()]
    pictures = [Picture(seed, identifier=name) for seed, name in enumerate(names)]
    asks = [ask(text(0, 20), picture, text(1, 10)) for picture in pictures]
    apart(engine, [*asks, *asks], args)


def test_salts_never_share_images(engine: EngineFactory, args: dict[str, Any]) -> None:
    asks = [ask(text(0, 20), A, text(1, 10), salt=salt) for salt in (None, "a", "b")]
    apart(engine, [*asks, *asks], args)


@pytest.mark.parametrize("gap", [0, 2], ids=["one step", "staggered"])
@pytest.mark.parametrize(
    "limits",
    [{}, {"max_num_batched_tokens": 48}, {"long_prefill_token_threshold": 13}],
    ids=["whole", "chunks", "small chunks"],
)
def test_all_at_once(
    engine: EngineFactory, idefics3: Path, ours: Kind, gap: int, limits: dict[str, int]
) -> None:
    """Requests with images in one step, or while others run, in chunks that end inside images."""
    args: dict[str, Any] = {"model": idefics3, "block_size": 16}
    asks = [asked for case in CASES.values() for asked in case]
    expected = engine("off", **args).run(asks)
    eng = engine(ours, **args, **limits)
    arrivals = [gap * i for i in range(len(asks))]
    assert_same(expected, eng.run(asks, arrivals))
    stock = engine("stock", **args, **limits)
    stock.run(asks, arrivals)
    assert eng.totals.hits >= stock.totals.hits > 0


def test_an_image_is_encoded_once(engine: EngineFactory, args: dict[str, Any], ours: Kind) -> None:
    """However often it is sent; and the encoder has really run as often as vLLM counts."""
    tiles = []

    def watch(model: torch.nn.Module) -> RemovableHandle:
        def count(tower: torch.nn.Module, args: Any, kwargs: dict[str, Any], out: Any) -> None:
            tiles.append(len(kwargs["pixel_values"]))

        handle: RemovableHandle = model.model.vision_model.register_forward_hook(
            count, with_kwargs=True
        )
        return handle

    asks = [asked for name in CASES if name != "embeddings" for asked in CASES[name]]
    pictures = {picture for asked in asks for picture in asked.items}
    eng = engine(ours, **args)
    [handle] = eng.llm.apply_model(watch)
    try:
        eng.run(asks, [2 * i for i in range(len(asks))])
        assert eng.totals.encoded == len(pictures)
        assert sum(tiles) == sum(
            rows * columns + 1 for rows, columns in (p.tiles for p in pictures)
        )
        eng.llm.reset_encoder_cache()
        eng.run([ask(text(0, 20), A, text(1, 10), text(3, 30))])
        assert eng.totals.encoded == len(pictures), "an image whose KV is cached was encoded"
    finally:
        handle.remove()


@pytest.mark.parametrize("chunk", [48, 64, 70, 100, 113])
def test_resuming_inside_an_image(
    engine: EngineFactory, idefics3: Path, ours: Kind, chunk: int
) -> None:
    """A request that is aborted inside an image leaves a part of it; the next one goes on there."""
    args: dict[str, Any] = {"model": idefics3, "block_size": 16, "max_num_batched_tokens": chunk}
    asked = ask(text(0, 20), A, text(1, 30))
    [expected] = engine("off", **args).run([asked])
    eng = engine(ours, **args)
    aborted = eng.add(asked)
    eng.step()
    eng.abort(aborted)
    eng.drain()
    eng.llm.reset_encoder_cache()
    eng.totals.encoded = 0
    [answer] = eng.run([asked])
    assert_same([expected], [answer])
    assert answer.cached == at_most(ours, asked, chunk, 16)
    # Nothing of the image is left to compute after 113 of the 114 positions: a token ends it.
    assert eng.totals.encoded == encodes(asked, answer.cached)


def test_an_image_of_which_a_part_was_evicted(
    engine: EngineFactory, idefics3: Path, ours: Kind
) -> None:
    """Whatever is left of an image, the answer is right, and it is encoded if it has to be."""
    args: dict[str, Any] = {"model": idefics3, "block_size": 16}
    pool = {**args, "num_gpu_blocks_override": 24, "max_model_len": 368}
    asked = ask(text(0, 20), A, text(1, 30), max_tokens=2)
    [expected] = engine("off", **args).run([asked])
    eng = engine(ours, **pool)
    seen = set()
    for filler in range(10, 350, 16):
        eng.run([asked, ask(text("filler", filler), max_tokens=1)], [0, 100])
        eng.llm.reset_encoder_cache()
        eng.totals.encoded = 0
        [answer] = eng.run([asked])
        assert_same([expected], [answer])
        left = answer.cached or 0
        assert eng.totals.encoded == encodes(asked, left)
        seen.add("inside" if 20 < left < 114 else "before" if left < 114 else "behind")
        eng.reset()
    assert seen == {"before", "inside", "behind"}


@pytest.mark.parametrize("seed", range(3))
def test_random_requests(engine: EngineFactory, args: dict[str, Any], seed: int) -> None:
    """Prompts made of a few texts and images, one by one, with and without an ample pool."""
    asks = random_asks(seed, 40)
    apart(engine, asks, args)


@pytest.mark.parametrize("seed", range(3))
def test_random_requests_under_pressure(
    engine: EngineFactory,
    idefics3: Path,
    ours: Kind,
    seed: int,
) -> None:
    """The same at random times, in a pool that holds a few of them, with evictions."""
    args: dict[str, Any] = {"model": idefics3, "block_size": 16}
    asks = random_asks(seed, 60, longest_answer=40)
    expected = engine("off", **args).run(asks)
    rng = random.Random(seed)
    arrivals = sorted(rng.randrange(300) for _ in asks)
    small = {"num_gpu_blocks_override": 36, "max_model_len": 560, "max_num_batched_tokens": 100}
    eng = engine(ours, **args, **small)
    assert_same(expected, eng.run(asks, arrivals))
    assert eng.totals.preemptions > 0 and eng.totals.hits > 0


def test_asynchronous_scheduling(engine: EngineFactory, idefics3: Path, ours: Kind) -> None:
    """Steps that are planned before the last one has run."""
    args: dict[str, Any] = {"model": idefics3, "block_size": 16}
    asks = random_asks(7, 40)
    expected = engine("off", **args).run(asks)
    with asynchronous_cpu():
        eng = engine(ours, **args, async_scheduling=True)
        assert eng.llm.engine_core.engine_core.batch_queue is not None
        for arrivals in (None, [3 * i for i in range(len(asks))]):
            assert_same(expected, eng.run(asks, arrivals))


def random_asks(seed: int, count: int, longest_answer: int = 8) -> list[Ask]:
    rng = random.Random(seed)
    texts = [text(f"{seed}/{i}", rng.randrange(1, 40)) for i in range(4)]
    parts = [*texts, A, B, WIDE, TALL]
    return [
        ask(*rng.choices(parts, k=rng.randrange(1, 6)), max_tokens=rng.randint(1, longest_answer))
        for _ in range(count)
    ]
