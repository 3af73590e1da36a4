# SPDX-License-Identifier: Apache-2.0
"""Images for the tiny Idefics3, given as pixels or as embeddings."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import BatchFeature
from vllm.inputs.engine import MultiModalInput, mm_input
from vllm.multimodal.hasher import MultiModalHasher
from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItems, PlaceholderRange

from .models import HIDDEN, ITEM, TILE_SIDE, TILE_TOKENS


@dataclass(frozen=True)
class Picture:
    """An image whose content depends on `seed` and its size alone, in pixels."""

    seed: int
    width: int = 2 * TILE_SIDE
    height: int = 2 * TILE_SIDE
    identifier: str | None = None  # what vLLM takes for the hash of the content, if it is given
    embedded: bool = False  # given as embeddings, which need no encoder

    @property
    def tiles(self) -> tuple[int, int]:
        """How many tiles it is cut into, in a column and in a row."""
        longest = max(self.width, self.height)
        rows, columns = (ceil(2 * side / longest) for side in (self.height, self.width))
        return rows, columns

    def layout(self) -> list["Picture | None"]:
        """For each position of its span, whether it is embedded there, or a token stands there."""
        rows, columns = self.tiles
        num_tiles = rows * columns + 1
        if self.embedded:
            return [self] * (num_tiles * TILE_TOKENS)
        tile = [None, None] + [self] * TILE_TOKENS
        row = tile * columns + [None]
        return [*row * rows, None, *tile, None]

    def pixels(self) -> Image.Image:
        rng = np.random.default_rng(self.seed)
        colours = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8))
        return colours.resize((self.width, self.height), Image.Resampling.NEAREST)

    def url(self) -> str:
        """The pixels as the OpenAI API takes them."""
        file = io.BytesIO()
        self.pixels().save(file, "PNG")
        return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"

    def embeddings(self) -> torch.Tensor:
        """Shape `[positions of its span, HIDDEN]`."""
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randn(len(self.layout()), HIDDEN, generator=generator)

    @staticmethod
    def prompt(tokens: Sequence[int], pictures: Sequence["Picture"]) -> dict[str, Any]:
        """What vLLM takes for a prompt in which an `ITEM` stands for each of `pictures`."""
        if pictures[0].embedded:
            return dict(_with_embeddings(tokens, pictures))
        return {
            "prompt_token_ids": list(tokens),
            "multi_modal_data": {"image": [picture.pixels() for picture in pictures]},
            "multi_modal_uuids": {"image": [picture.identifier for picture in pictures]},
        }


def _with_embeddings(prompt: Sequence[int], pictures: Sequence[Picture]) -> MultiModalInput:
    # vLLM's processor of Idefics3 takes pixels only, its model takes embeddings as well: so this is
    # what a processor would give.
    tokens: list[int] = []
    places, hashes, items = [], [], []
    waiting = iter(pictures)
    for token in prompt:
        if token != ITEM:
            tokens.append(token)
            continue
        embeddings = next(waiting).embeddings()
        places.append(PlaceholderRange(offset=len(tokens), length=len(embeddings)))
        tokens += [ITEM] * len(embeddings)
        hashes.append(MultiModalHasher.hash_kwargs("blake3", image=embeddings))
        items += MultiModalKwargsItems.from_hf_inputs(
            BatchFeature({"image_embeds": embeddings[None]}),
            {"image_embeds": MultiModalFieldConfig.batched("image")},
        )["image"]
    return mm_input(
        tokens,
        MultiModalKwargsItems({"image": items}),
        {"image": hashes},
        {"image": places},
    )
