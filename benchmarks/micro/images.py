# SPDX-License-Identifier: Apache-2.0
"""A cached prompt of images, beside one of text of the same length."""

from collections.abc import Mapping, Sequence
from functools import partial

from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager

from benchmarks.micro.contenders import BLOCK_SIZE, Contender, as_received, both, random_tokens
from benchmarks.micro.figures import Figure, Target
from benchmarks.micro.timing import interleaved, timed

_PLACEHOLDER = 9
_END_TOKENS = 60
_OVER_TEXT = 1.2

FIND = "find the prefix: get_computed_blocks()"
ARRIVE = "arrival: Request(), add_request()"


def images(num_images: int, length: int, rounds: int) -> list[Figure]:
    """Figures for a prompt of ``num_images`` images of ``length`` positions each, and its text."""
    prompt = [_PLACEHOLDER] * (num_images * length)
    text = random_tokens(len(prompt), num_images)
    items = [
        MultiModalFeatureSpec(
            data=None,
            modality="image",
            # As long as a content hash is.
            identifier=f"{number:064x}",
            mm_position=PlaceholderRange(offset=number * length, length=length),
        )
        for number in range(num_images)
    ]
    contenders = both(4 * (len(prompt) + 4 * (rounds + 8) * _END_TOKENS) // BLOCK_SIZE)
    for contender in contenders:
        # A model of text alone has no encoder; all images are cached when it counts.
        contender.scheduler.max_num_encoder_input_tokens = len(prompt)
        contender.scheduler.encoder_cache_manager = EncoderCacheManager(len(prompt))
        contender.run(as_received(text, _end(0)))
        contender.run(as_received(prompt, _end(0)), items)
    prompts = {"text": (text, ()), "images": (prompt, items)}
    medians = interleaved(contenders, rounds, partial(_look, prompts))
    figures = []
    for name in (FIND, ARRIVE):
        for kind in ("text", "images"):
            of = medians[f"{name}, {kind}"]
            target = None
            if (name, kind) == (FIND, "images"):
                limit = _OVER_TEXT * medians[f"{name}, text"]["ours"]
                target = Target(limit, False, f"{_OVER_TEXT:g} x text")
            figures.append(Figure(f"{name}, {kind}", of["ours"], of["stock"], target))
    return figures


def _look(
    prompts: Mapping[str, tuple[list[int], Sequence[MultiModalFeatureSpec]]],
    contender: Contender,
    round_: int,
) -> dict[str, float]:
    times = {}
    manager = contender.scheduler.kv_cache_manager
    # The second finds warm what the first has used: each is the first in every other round.
    for kind in sorted(prompts, reverse=bool(round_ % 2)):
        prefix, items = prompts[kind]
        tokens = as_received(prefix, _end(1 + round_))
        times[f"{ARRIVE}, {kind}"], request = timed(partial(contender.arrive, tokens, items=items))
        times[f"{FIND}, {kind}"], found = timed(partial(manager.get_computed_blocks, request))
        assert found[1] == len(prefix)
        contender.abort(request)
    return times


def _end(number: int) -> list[int]:
    # No two share their first token: a match is the prefix exactly.
    return [number, *random_tokens(_END_TOKENS - 1, number)]
