# SPDX-License-Identifier: Apache-2.0
"""Videos and sounds: the rules for images hold for them, and where they lie over one another."""

from pathlib import Path
from typing import Any

import pytest

from .conftest import EngineFactory
from .engines import LOGPROB_TOLERANCE, Ask, Kind, assert_same, max_difference
from .items import apart, ask, at_most, text
from .omni import AUDIO_A_CHUNK, VIDEO_A_CHUNK, image, sound, tiny_omni, video, video_with_sound

pytestmark = pytest.mark.engine

ALL = [image(1), video(1), sound(1), video_with_sound(1, 1)]
BEFORE, AFTER = text("before", 20), text("after", 10)


@pytest.fixture(scope="session")
def omni(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_omni(tmp_path_factory.mktemp("tiny-omni"))


@pytest.fixture(params=[16, 32])
def args(request: pytest.FixtureRequest, omni: Path) -> dict[str, Any]:
    """Of the engines."""
    return {"model": omni, "block_size": request.param, "skip_mm_profiling": True}


def test_one_other_item_shows(engine: EngineFactory, omni: Path) -> None:
    """KV of another item, or of one elsewhere, moves the logprobs far beyond the tolerance."""
    off = engine("off", model=omni, block_size=16, skip_mm_profiling=True)
    end = text("end", 20)

    def first(asked: Ask) -> Any:
        return off.run([asked])[0].logprobs[0][:1]

    for right, *wrong in (
        [image(1), image(2)],
        [video(1), video(2)],
        [sound(1), sound(2)],
        [
            video_with_sound(1, 1),
            video_with_sound(2, 1),
            video_with_sound(1, 2),
            video(1),
        ],
    ):
        expected = first(ask((5,), right, end))
        for asked in [ask((5,), other, end) for other in wrong] + [ask((5, 6), right, end)]:
            assert max_difference(expected, first(asked)) > 50 * LOGPROB_TOLERANCE


CASES: dict[str, list[Ask]] = {
    "same": [ask(BEFORE, item, AFTER) for item in ALL * 2],
    "other": [
        ask(BEFORE, kind(seed), AFTER) for kind in (image, video, sound) for seed in (1, 2, 1)
    ],
    "other sound": [
        ask(BEFORE, item, AFTER)
        for item in (
            video_with_sound(1, 1),
            video_with_sound(1, 2),
            video_with_sound(2, 1),
            video_with_sound(2, 2),
            video_with_sound(1, 1),
        )
    ],
    "other place": [ask(BEFORE[:n], item, AFTER) for item in ALL[:3] for n in (20, 19, 0, 20)],
    "swapped": [
        ask(BEFORE, video(1), sound(1), AFTER),
        ask(BEFORE, sound(1), video(1), AFTER),
        ask(BEFORE, video(1), video(2), AFTER),
        ask(BEFORE, video(2), video(1), AFTER),
    ],
    "swapped with sound": [
        ask(BEFORE, video_with_sound(1, 2), video_with_sound(2, 1), AFTER),
        ask(BEFORE, video_with_sound(2, 1), video_with_sound(1, 2), AFTER),
        ask(BEFORE, video_with_sound(1, 2), video_with_sound(2, 1), AFTER[:5]),
    ],
    "in a row": [ask(BEFORE, *[item] * n, AFTER) for item in ALL[:3] for n in (1, 3, 2)],
    "last": [ask(BEFORE, item) for item in ALL[:3] * 2],
    "last with sound": [ask(BEFORE, ALL[3]) for _ in range(2)],
    "together": [
        ask(BEFORE, *ALL, AFTER),
        ask(BEFORE, *ALL, AFTER[:4]),
        ask(BEFORE, *ALL[:3], AFTER),
        ask(BEFORE, *ALL[:2], video(3), *ALL[3:], AFTER),
    ],
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_reused(engine: EngineFactory, args: dict[str, Any], case: str) -> None:
    """Through the same items at the same places, and as far as the first that differs."""
    asks = CASES[case]
    kinds: list[Kind] = ["off", "blocks", "radix"]
    if not any(len(item.streams) > 1 for asked in asks for item in asked.items):
        # Of items that lie over one another, stock's hashes count the first alone: KV of a video
        # with another sound passes for this one's.
        kinds.append("stock")
    apart(engine, asks, args, kinds)


def test_all_at_once(engine: EngineFactory, args: dict[str, Any], ours: Kind) -> None:
    """Requests with all kinds of items in one step, or while others run."""
    asks = [asked for case in CASES.values() for asked in case]
    expected = engine("off", **args).run(asks)
    eng = engine(ours, **args)
    for gap in (0, 2):
        assert_same(expected, eng.run(asks, [gap * i for i in range(len(asks))]))
    assert eng.totals.hits > 0


@pytest.mark.parametrize("item", [video(1), sound(1)], ids=["video", "sound"])
@pytest.mark.parametrize("chunk", [40, 48, 50])
def test_resuming_inside_an_item(
    engine: EngineFactory, omni: Path, ours: Kind, item: Any, chunk: int
) -> None:
    """A request that is aborted inside an item leaves a part of it; the next one goes on there."""
    args: dict[str, Any] = {"model": omni, "block_size": 16, "skip_mm_profiling": True}
    resume(engine, ours, args, ask(BEFORE, item, AFTER), chunk)


@pytest.mark.parametrize("num_before", range(9, 17))
def test_not_resuming_between_a_video_and_its_sound(
    engine: EngineFactory, omni: Path, ours: Kind, num_before: int
) -> None:
    """Neither in the video before the sound, nor in the sound, nor in the video that follows.

    Their encoders' outputs are told apart by the items that they belong to, and vLLM's model would
    take the video's first though the sound's come first.
    """
    args: dict[str, Any] = {"model": omni, "block_size": 16, "skip_mm_profiling": True}
    asked = ask(text("before", num_before), video_with_sound(1, 1), AFTER)
    # The end of the last whole block lies among the tokens of the first sound, or beside them.
    first = num_before + 1 + VIDEO_A_CHUNK
    assert first - 1 <= 48 <= first + AUDIO_A_CHUNK + 3
    [expected] = engine("off", **args).run([asked])
    # Beside another one, a request gets so many tokens in a step; if it is alone, all.
    eng = engine(ours, long_prefill_token_threshold=56, **args)
    requests = [eng.add(asked), eng.add(ask(text("other", 5)))]
    eng.step()
    for request in requests:
        eng.abort(request)
    eng.drain()
    [answer] = eng.run([asked])
    assert_same([expected], [answer])
    assert answer.cached == at_most(ours, asked, 56, 16)


def resume(engine: EngineFactory, ours: Kind, args: dict[str, Any], asked: Ask, chunk: int) -> None:
    """Abort the request after a chunk of its prompt, and send it again."""
    [expected] = engine("off", **args).run([asked])
    eng = engine(ours, max_num_batched_tokens=chunk, **args)
    aborted = eng.add(asked)
    eng.step()
    eng.abort(aborted)
    eng.drain()
    [answer] = eng.run([asked])
    assert_same([expected], [answer])
    assert answer.cached == at_most(ours, asked, chunk, 16)
