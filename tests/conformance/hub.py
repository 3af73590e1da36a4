# SPDX-License-Identifier: Apache-2.0
"""Entries of a Hugging Face hub cache for the models that vLLM's scheduler tests name.

The tests read a model's shape (layers, heads, context length, image tokens), never its weights.
So each entry holds a configuration, and for models that take images an image processor and a
tokenizer of the special tokens alone. With them the tests run without a network.
"""

import json
from pathlib import Path
from typing import Any

# A cache names snapshots by commit; nothing was committed here.
REVISION = "0" * 40


def write(cache: Path) -> None:
    """Write every entry under ``cache``, the folder that ``HF_HUB_CACHE`` is to name."""
    for model, files in MODELS.items():
        entry = cache / f"models--{model.replace('/', '--')}"
        snapshot = entry / "snapshots" / REVISION
        snapshot.mkdir(parents=True, exist_ok=True)
        (entry / "refs").mkdir(exist_ok=True)
        (entry / "refs" / "main").write_text(REVISION)
        for name, content in files.items():
            (snapshot / f"{name}.json").write_text(json.dumps(content, indent=1))


def _tokenizer(unknown: str, **ids: int) -> dict[str, Any]:
    """A tokenizer that knows the special tokens ``ids`` and takes every other word as unknown."""
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": id_, "content": token, "special": True, **added} for token, id_ in ids.items()
        ],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": ids, "unk_token": unknown},
    }


# No step of an image processor is wanted: the images that are counted have the right size.
_UNTOUCHED = {
    "do_resize": False,
    "do_center_crop": False,
    "do_rescale": False,
    "do_normalize": False,
}

_QWEN = {"bos_token_id": 151643, "rms_norm_eps": 1e-6, "torch_dtype": "bfloat16"}

MODELS: dict[str, dict[str, dict[str, Any]]] = {
    "facebook/opt-125m": {
        "config": {
            "architectures": ["OPTForCausalLM"],
            "model_type": "opt",
            "activation_function": "relu",
            "bos_token_id": 2,
            "do_layer_norm_before": True,
            "eos_token_id": 2,
            "ffn_dim": 3072,
            "hidden_size": 768,
            "max_position_embeddings": 2048,
            "num_attention_heads": 12,
            "num_hidden_layers": 12,
            "pad_token_id": 1,
            "prefix": "</s>",
            "torch_dtype": "float16",
            "vocab_size": 50272,
            "word_embed_proj_dim": 768,
        },
    },
    "facebook/opt-350m": {
        "config": {
            "architectures": ["OPTForCausalLM"],
            "model_type": "opt",
            "activation_function": "relu",
            "bos_token_id": 2,
            "do_layer_norm_before": False,
            "eos_token_id": 2,
            "ffn_dim": 4096,
            "hidden_size": 1024,
            "max_position_embeddings": 2048,
            "num_attention_heads": 16,
            "num_hidden_layers": 24,
            "pad_token_id": 1,
            "prefix": "</s>",
            "torch_dtype": "float16",
            "vocab_size": 50272,
            "word_embed_proj_dim": 512,
        },
    },
    # What a ModelConfig without a model stands for.
    "Qwen/Qwen3-0.6B": {
        "config": {
            **_QWEN,
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "eos_token_id": 151645,
            "head_dim": 128,
            "hidden_act": "silu",
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "max_position_embeddings": 40960,
            "num_attention_heads": 16,
            "num_hidden_layers": 28,
            "num_key_value_heads": 8,
            "rope_theta": 1000000.0,
            "tie_word_embeddings": True,
            "vocab_size": 151936,
        },
    },
    "Qwen/Qwen1.5-7B": {
        "config": {
            **_QWEN,
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "eos_token_id": 151643,
            "hidden_act": "silu",
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "max_position_embeddings": 32768,
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "num_key_value_heads": 32,
            "rope_theta": 1000000.0,
            "vocab_size": 151936,
        },
    },
    # Named by the tests of 0.33 alone.
    "Qwen/Qwen3-Next-80B-A3B-Instruct": {
        "config": {
            **_QWEN,
            "architectures": ["Qwen3NextForCausalLM"],
            "model_type": "qwen3_next",
            "decoder_sparse_step": 1,
            "eos_token_id": 151645,
            "full_attention_interval": 4,
            "head_dim": 256,
            "hidden_act": "silu",
            "hidden_size": 2048,
            "intermediate_size": 5120,
            "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 128,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 32,
            "linear_value_head_dim": 128,
            "max_position_embeddings": 262144,
            "moe_intermediate_size": 512,
            "norm_topk_prob": True,
            "num_attention_heads": 16,
            "num_experts": 512,
            "num_experts_per_tok": 10,
            "num_hidden_layers": 48,
            "num_key_value_heads": 2,
            "partial_rotary_factor": 0.25,
            "rope_theta": 10000000,
            "shared_expert_intermediate_size": 512,
            "vocab_size": 151936,
        },
    },
    "llava-hf/llava-1.5-7b-hf": {
        "config": {
            "architectures": ["LlavaForConditionalGeneration"],
            "model_type": "llava",
            "image_token_index": 32000,
            "pad_token_id": 32001,
            "projector_hidden_act": "gelu",
            "text_config": {
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                "max_position_embeddings": 4096,
                "rms_norm_eps": 1e-5,
                "torch_dtype": "float16",
                "vocab_size": 32064,
            },
            "torch_dtype": "float16",
            "vision_config": {
                "model_type": "clip_vision_model",
                "hidden_size": 1024,
                "image_size": 336,
                "intermediate_size": 4096,
                "num_attention_heads": 16,
                "num_hidden_layers": 24,
                "patch_size": 14,
                "projection_dim": 768,
            },
            "vision_feature_layer": -2,
            "vision_feature_select_strategy": "default",
        },
        "preprocessor_config": {
            "image_processor_type": "CLIPImageProcessor",
            "crop_size": {"height": 336, "width": 336},
            "size": {"shortest_edge": 336},
            **_UNTOUCHED,
        },
        "processor_config": {
            "processor_class": "LlavaProcessor",
            "image_token": "<image>",
            "num_additional_image_tokens": 1,
            "patch_size": 14,
            "vision_feature_select_strategy": "default",
        },
        "tokenizer": _tokenizer(
            "<unk>", **{"<unk>": 0, "<s>": 1, "</s>": 2, "<image>": 32000, "<pad>": 32001}
        ),
        "tokenizer_config": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "pad_token": "<pad>",
            "unk_token": "<unk>",
        },
    },
    "Qwen/Qwen2.5-VL-3B-Instruct": {
        "config": {
            **_QWEN,
            "architectures": ["Qwen2_5_VLForConditionalGeneration"],
            "model_type": "qwen2_5_vl",
            "eos_token_id": 151645,
            "hidden_act": "silu",
            "hidden_size": 2048,
            "image_token_id": 151655,
            "intermediate_size": 11008,
            "max_position_embeddings": 128000,
            "num_attention_heads": 16,
            "num_hidden_layers": 36,
            "num_key_value_heads": 2,
            "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
            "rope_theta": 1000000.0,
            "tie_word_embeddings": True,
            "video_token_id": 151656,
            "vision_config": {
                "depth": 32,
                "fullatt_block_indexes": [7, 15, 23, 31],
                "hidden_act": "silu",
                "hidden_size": 1280,
                "in_chans": 3,
                "intermediate_size": 3420,
                "num_heads": 16,
                "out_hidden_size": 2048,
                "patch_size": 14,
                "spatial_merge_size": 2,
                "temporal_patch_size": 2,
                "tokens_per_second": 2,
                "window_size": 112,
            },
            "vision_end_token_id": 151653,
            "vision_start_token_id": 151652,
            "vocab_size": 151936,
        },
        "preprocessor_config": {
            "image_processor_type": "Qwen2VLImageProcessor",
            "processor_class": "Qwen2_5_VLProcessor",
            "max_pixels": 12845056,
            "merge_size": 2,
            "min_pixels": 3136,
            "patch_size": 14,
            "temporal_patch_size": 2,
            **_UNTOUCHED,
        },
        "tokenizer": _tokenizer(
            "<|endoftext|>",
            **{
                "<|endoftext|>": 151643,
                "<|im_end|>": 151645,
                "<|vision_start|>": 151652,
                "<|vision_end|>": 151653,
                "<|image_pad|>": 151655,
                "<|video_pad|>": 151656,
            },
        ),
        "tokenizer_config": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "unk_token": "<|endoftext|>",
        },
    },
}
