# SPDX-License-Identifier: Apache-2.0
"""A tiny Qwen2.5-Omni, which sees images and videos and hears, and what it sees and hears.

What its processor would make of pixels and waves is made here, at random: the processor needs
torchvision, and which numbers the encoders get does not matter. All else is vLLM's: the encoders,
the positions in time, height and width, and how a video and its sound are interleaved.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch
from tokenizers import AddedToken
from transformers import (
    BatchFeature,
    Qwen2_5OmniThinkerConfig,
    Qwen2_5OmniThinkerForConditionalGeneration,
)
from vllm import ModelRegistry
from vllm.inputs.engine import mm_input
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.hasher import MultiModalHasher
from vllm.multimodal.inputs import MultiModalKwargsItem, MultiModalKwargsItems, PlaceholderRange
from vllm.multimodal.processing import (
    BaseDummyInputsBuilder,
    BaseMultiModalProcessor,
    BaseProcessingInfo,
)

from . import models
from .models import HIDDEN, ITEM, WEIGHT_STD

ARCHITECTURE = "TinyOmni"
VOCAB_SIZE = 576
SPECIAL = ("<|IMAGE|>", "<|VIDEO|>", "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>")
IMAGE, VIDEO, AUDIO, AUDIO_START, AUDIO_END = range(models.VOCAB_SIZE, models.VOCAB_SIZE + 5)

PATCH_SIDE = 8  # pixels
FRAMES_A_PATCH = 2
SCALE = 2  # so many patches in a row, and in a column, make one embedding
MEL_BINS = 16
# A grid of patches each: in time, in height and in width.
IMAGE_GRID = (1, 12, 12)
VIDEO_GRID = (5, 8, 8)
SOUND_FRAMES = {"alone": 160, "in a video": 16}
# One patch in time lasts a second, in which the positions advance by two.
SECONDS_A_CHUNK = 2
POSITIONS_A_SECOND = 2
# What lies between a video and its sound, chunk by chunk, until the sound is over.
VIDEO_A_CHUNK = SECONDS_A_CHUNK * (VIDEO_GRID[1] // SCALE) * (VIDEO_GRID[2] // SCALE)
AUDIO_A_CHUNK = SECONDS_A_CHUNK * POSITIONS_A_SECOND


@dataclass(frozen=True)
class Stream:
    """What one encoder gets: its content depends on the seed alone."""

    modality: Literal["image", "video", "audio"]
    seed: int
    beside_another: bool = False  # a video with sound, or the sound of a video

    @property
    def token(self) -> int:
        return {"image": IMAGE, "video": VIDEO, "audio": AUDIO}[self.modality]

    @property
    def num_tokens(self) -> int:
        if self.modality == "audio":
            # Two convolutions halve it, one after the other.
            return (self.num_sound_frames // 2 - 2) // 2 + 1
        frames, rows, columns = self.grid
        return frames * (rows // SCALE) * (columns // SCALE)

    @property
    def grid(self) -> tuple[int, int, int]:
        return IMAGE_GRID if self.modality == "image" else VIDEO_GRID

    @property
    def num_sound_frames(self) -> int:
        return SOUND_FRAMES["in a video" if self.beside_another else "alone"]

    def data(self) -> dict[str, torch.Tensor]:
        """What a processor would make of it, under the names that the model knows."""
        generator = torch.Generator().manual_seed(self.seed)
        if self.modality == "audio":
            frames = self.num_sound_frames
            return {
                "input_audio_features": torch.randn(MEL_BINS, frames, generator=generator),
                "audio_feature_lengths": torch.tensor([frames]),
                "feature_attention_mask": torch.ones(1, frames, dtype=torch.long),
            }
        frames, rows, columns = self.grid
        shape = (frames * rows * columns, 3 * FRAMES_A_PATCH * PATCH_SIDE**2)
        patches = torch.randn(shape, generator=generator)
        grids = torch.tensor([self.grid])
        if self.modality == "image":
            return {"pixel_values": patches, "image_grid_thw": grids}
        return {
            "pixel_values_videos": patches,
            "video_grid_thw": grids,
            "second_per_grid_ts": torch.tensor([1.0]),
            "use_audio_in_video": torch.tensor(self.beside_another),
        }

    def item(self) -> MultiModalKwargsItem:
        data = self.data()
        fields = _vllm_omni().create_qwen2_5_omni_thinker_field_factory(SCALE)(data)
        (item,) = MultiModalKwargsItems.from_hf_inputs(BatchFeature(data), fields)[self.modality]
        return item

    def identifier(self) -> str:
        return MultiModalHasher.hash_kwargs("blake3", **{self.modality: self.data()})


@dataclass(frozen=True)
class Clip:
    """An image, a video, a sound, or a video with its sound."""

    streams: tuple[Stream, ...]

    def tokens(self) -> list[int]:
        if len(self.streams) == 1:
            [stream] = self.streams
            return [stream.token] * stream.num_tokens
        video, sound = ([stream.token] * stream.num_tokens for stream in self.streams)
        tokens = [AUDIO_START]
        while video:
            tokens += video[:VIDEO_A_CHUNK] + sound[:AUDIO_A_CHUNK]
            del video[:VIDEO_A_CHUNK], sound[:AUDIO_A_CHUNK]
        return [*tokens, *sound, AUDIO_END]

    def layout(self) -> list[Stream | None]:
        """For each position of its span, what is embedded there; None where a token stands."""
        stream_of = {stream.token: stream for stream in self.streams}
        return [stream_of.get(token) for token in self.tokens()]

    @staticmethod
    def prompt(tokens: Sequence[int], clips: Sequence["Clip"]) -> dict[str, Any]:
        """What vLLM takes for a prompt in which an `ITEM` stands for each of `clips`."""
        waiting = iter(clips)
        prompt: list[int] = []
        items: dict[str, list[MultiModalKwargsItem]] = {}
        hashes: dict[str, list[str]] = {}
        places: dict[str, list[PlaceholderRange]] = {}
        for token in tokens:
            if token != ITEM:
                prompt.append(token)
                continue
            clip = next(waiting)
            span = torch.tensor(clip.tokens())
            for stream in clip.streams:
                items.setdefault(stream.modality, []).append(stream.item())
                hashes.setdefault(stream.modality, []).append(stream.identifier())
                places.setdefault(stream.modality, []).append(
                    PlaceholderRange(
                        offset=len(prompt), length=len(span), is_embed=span == stream.token
                    )
                )
            prompt += span.tolist()
        return dict(mm_input(prompt, MultiModalKwargsItems(items), hashes, places))


def image(seed: int) -> Clip:
    return Clip((Stream("image", seed),))


def video(seed: int) -> Clip:
    return Clip((Stream("video", seed),))


def sound(seed: int) -> Clip:
    return Clip((Stream("audio", seed),))


def video_with_sound(video: int, sound: int) -> Clip:
    """From two seeds. The sound ends before the video does."""
    return Clip((Stream("video", video, True), Stream("audio", sound, True)))


def tiny_omni(path: Path) -> Path:
    """Write a random float32 Qwen2.5-Omni into the empty folder `path`; return it.

    This process alone can load it.
    """
    _register()
    config = Qwen2_5OmniThinkerConfig(
        image_token_index=IMAGE,
        video_token_index=VIDEO,
        audio_token_index=AUDIO,
        audio_start_token_id=AUDIO_START,
        audio_end_token_id=AUDIO_END,
        seconds_per_chunk=SECONDS_A_CHUNK,
        position_id_per_seconds=POSITIONS_A_SECOND,
        audio_config={
            "num_mel_bins": MEL_BINS,
            "encoder_layers": 2,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 128,
            "d_model": 64,
            "max_source_positions": 200,
            "n_window": 10,
            "output_dim": HIDDEN,
        },
        vision_config={
            "depth": 2,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_heads": 2,
            "patch_size": PATCH_SIDE,
            "temporal_patch_size": FRAMES_A_PATCH,
            "spatial_merge_size": SCALE,
            "window_size": 4 * PATCH_SIDE,
            "out_hidden_size": HIDDEN,
            "fullatt_block_indexes": [1],
            "tokens_per_second": POSITIONS_A_SECOND,
        },
        text_config={
            "vocab_size": VOCAB_SIZE,
            "hidden_size": HIDDEN,
            "intermediate_size": models.INTERMEDIATE,
            "num_hidden_layers": models.LAYERS,
            "num_attention_heads": models.HEADS,
            "num_key_value_heads": models.KV_HEADS,
            "max_position_embeddings": models.MAX_MODEL_LEN,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [4, 6, 6],
            },
            "tie_word_embeddings": False,
        },
    )
    generator = torch.Generator().manual_seed(1)
    tensors = {
        f"thinker.{name}": _random(name, tensor, generator)
        for name, tensor in Qwen2_5OmniThinkerForConditionalGeneration(config).state_dict().items()
    }
    tokenizer = models.make_tokenizer()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    whole: dict[str, object] = {
        "architectures": [ARCHITECTURE],
        "model_type": "qwen2_5_omni",
        "thinker_config": config.to_dict(),
        "enable_audio_output": False,
    }
    models.write_checkpoint(path, tensors, tokenizer, whole)
    return path


def _random(name: str, tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if tensor.ndim == 1:
        return torch.zeros_like(tensor) if name.endswith("bias") else torch.ones_like(tensor)
    weight = torch.randn(tensor.shape, generator=generator)
    if name == "model.embed_tokens.weight":
        return weight
    if name in ("visual.merger.mlp.2.weight", "audio_tower.proj.weight"):
        # Embeddings of items are about as large as those of tokens.
        return weight / tensor.shape[1] ** 0.5
    return weight * WEIGHT_STD


class _Info(BaseProcessingInfo):
    def get_supported_mm_limits(self) -> dict[str, int | None]:
        return {"image": None, "video": None, "audio": None}

    def get_mm_max_tokens_per_item(self, seq_len: int, mm_counts: Any = None) -> dict[str, int]:
        return dict.fromkeys(self.get_supported_mm_limits(), 200)


class _NoDummies(BaseDummyInputsBuilder[_Info]):
    def get_dummy_text(self, mm_counts: Any) -> str:
        raise NotImplementedError("the profiling is skipped")

    def get_dummy_mm_data(self, *args: Any) -> dict[str, Any]:
        raise NotImplementedError("the profiling is skipped")


class _NoProcessor(BaseMultiModalProcessor[_Info]):
    def _get_mm_fields_config(self, *args: Any) -> dict[str, Any]:
        raise NotImplementedError("prompts are given as they come from a processor")

    def _get_prompt_updates(self, *args: Any) -> list[Any]:
        raise NotImplementedError("prompts are given as they come from a processor")


def _register() -> None:
    """Have vLLM know the architecture: its own Qwen2.5-Omni, without the processor."""

    @MULTIMODAL_REGISTRY.register_processor(_NoProcessor, info=_Info, dummy_inputs=_NoDummies)
    class TinyOmni(_vllm_omni().Qwen2_5OmniThinkerForConditionalGeneration):
        pass

    ModelRegistry.register_model(ARCHITECTURE, TinyOmni)


@cache
def _vllm_omni() -> Any:
    """vLLM's module, which imports a function from beside those that need torchvision."""
    names: list[str] = []
    if find_spec("torchvision") is None:
        package = "torchvision.transforms.v2.functional"
        names = [package[:end] for end, c in enumerate(package + ".") if c == "."]
        for name in names:
            sys.modules[name] = ModuleType(name)
            parent, _, child = name.rpartition(".")
            if parent:
                setattr(sys.modules[parent], child, sys.modules[name])
    try:
        from vllm.model_executor.models import qwen2_5_omni_thinker
    finally:
        for name in names:
            del sys.modules[name]
    return qwen2_5_omni_thinker
