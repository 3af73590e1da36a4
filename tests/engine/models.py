# SPDX-License-Identifier: Apache-2.0
"""Checkpoints for the engine tests, made offline.

`tiny_llama` and `tiny_lora` write a random Llama and a LoRA adapter for it, small enough to start
in a second; `tiny_idefics3` writes one that sees images, through a SigLIP tower. Random weights
are enough to compare two runs of the same engine, provided that the output depends on the whole
prompt and that no two tokens are nearly tied; the constants below are chosen for both, and
`test_models.py` and `test_images.py` hold them to it.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

Tensors = dict[str, torch.Tensor]

VOCAB_SIZE = 512
ITEM = VOCAB_SIZE
"""Stands for an item in the prompt of an `Ask`, and for an image in that of a model."""
MAX_MODEL_LEN = 1024
HIDDEN = 128
INTERMEDIATE = 256
LAYERS = 2
HEADS = 4
KV_HEADS = 2
HEAD_DIM = 32  # the smallest head the CPU attention backend of vLLM supports
WEIGHT_STD = 0.12
LORA_RANK = 8

BOS, EOS, PAD = "<s>", "</s>", "<pad>"

# Of the model that sees images. The special tokens of images come after those of the Llama.
IMAGE_VOCAB_SIZE = 576
VISION_HIDDEN = 64
VISION_HEADS = 2
TILE_SIDE = 64  # pixels
PATCH_SIDE = 8  # pixels
SCALE = 2  # so many patches in a row, and in a column, make one embedding
TILE_TOKENS = (TILE_SIDE // PATCH_SIDE // SCALE) ** 2
IMAGE, AROUND_IMAGE, WHOLE_IMAGE = "<image>", "<fake_token_around_image>", "<global-img>"
CHAT_TEMPLATE = (
    "{% for m in messages %}<s>{{ m.role }} {% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{{ '<image>' if part.type == 'image' else part.text }}{% endfor %}"
    "{% endif %}{% endfor %}<s>assistant "
)

# What the tokenizer is trained on: long enough for VOCAB_SIZE entries.
CORPUS = """
A block holds the keys and values of a fixed number of tokens. A block table maps the positions of
a request to blocks. When two requests start with the same tokens, the second may read the blocks
that the first has written, and its prefill starts where the shared prefix ends. A cache that finds
such prefixes must never hand out a block whose content is not final, must never free a block that
a running request reads, and must give back every block in the end. Requests arrive, are admitted,
compute their prompts in chunks, decode one token at a time, and finish or are aborted. Under
pressure some are preempted: their blocks are freed and their tokens computed again later.
{"name": "Ada Lovelace", "age": 36, "city": "London", "tags": ["math", "notes"], "ok": true}
{"name": "Alan Turing", "age": 41, "city": "Wilmslow", "tags": ["logic", "codes"], "ok": false}
0123456789 10 20 30 40 50 60 70 80 90 100 1000. The quick brown fox jumps over the lazy dog.
You are a helpful assistant. Use the tools you are given. Answer shortly. Think step by step.
"""


def make_tokenizer() -> Tokenizer:
    """A byte-level BPE tokenizer with exactly `VOCAB_SIZE` entries."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        CORPUS.splitlines(),
        BpeTrainer(
            vocab_size=VOCAB_SIZE,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            special_tokens=[AddedToken(t, special=True, normalized=False) for t in (BOS, EOS, PAD)],
            show_progress=False,
        ),
    )
    if tokenizer.get_vocab_size() != VOCAB_SIZE:
        raise ValueError(f"CORPUS yields {tokenizer.get_vocab_size()} tokens, not {VOCAB_SIZE}.")
    return tokenizer


def _write_json(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")


def _weight(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=generator) * WEIGHT_STD


def _llama_tensors(generator: torch.Generator, vocab_size: int, model: str) -> Tensors:
    """Weights of a Llama whose layers are called `model`, and of its head."""
    tensors = {
        # Unit embeddings: what a position holds is its token, not the noise of the layers.
        f"{model}.embed_tokens.weight": torch.randn(vocab_size, HIDDEN, generator=generator),
        f"{model}.norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": _weight(generator, vocab_size, HIDDEN),
    }
    shapes = {
        "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
        "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
        "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
        "mlp.up_proj": (INTERMEDIATE, HIDDEN),
        "mlp.down_proj": (HIDDEN, INTERMEDIATE),
    }
    for layer in range(LAYERS):
        prefix = f"{model}.layers.{layer}"
        tensors[f"{prefix}.input_layernorm.weight"] = torch.ones(HIDDEN)
        tensors[f"{prefix}.post_attention_layernorm.weight"] = torch.ones(HIDDEN)
        for name, shape in shapes.items():
            tensors[f"{prefix}.{name}.weight"] = _weight(generator, *shape)
    return tensors


def _llama_config(vocab_size: int) -> dict[str, object]:
    return {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": vocab_size,
        "max_position_embeddings": MAX_MODEL_LEN,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
    }


def write_checkpoint(
    path: Path, tensors: Tensors, tokenizer: Tokenizer, config: dict[str, object]
) -> None:
    """Write a float32 checkpoint with its tokenizer."""
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save(str(path / "tokenizer.json"))
    bos, eos, pad = (tokenizer.token_to_id(t) for t in (BOS, EOS, PAD))
    ids = {"bos_token_id": bos, "eos_token_id": eos, "pad_token_id": pad}
    _write_json(path / "config.json", {**config, "torch_dtype": "float32", **ids})
    _write_json(
        path / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": BOS,
            "eos_token": EOS,
            "pad_token": PAD,
            "model_max_length": MAX_MODEL_LEN,
            "clean_up_tokenization_spaces": False,
        },
    )


def tiny_llama(path: Path) -> Path:
    """Write a random float32 Llama with its tokenizer into the empty folder `path`; return it."""
    generator = torch.Generator().manual_seed(1)
    tensors = _llama_tensors(generator, VOCAB_SIZE, "model")
    config = {"architectures": ["LlamaForCausalLM"], **_llama_config(VOCAB_SIZE)}
    write_checkpoint(path, tensors, make_tokenizer(), config)
    return path


def tiny_idefics3(path: Path) -> Path:
    """Write a random float32 Idefics3 with all that its processor takes; return the folder.

    An image is cut into tiles of `TILE_SIDE` by `TILE_SIDE` pixels, at most two by two of them; all
    tiles and the whole image, shrunk to the size of a tile, stand for it with `TILE_TOKENS`
    embeddings each.
    """
    generator = torch.Generator().manual_seed(1)
    tensors = _llama_tensors(generator, IMAGE_VOCAB_SIZE, "model.text_model")
    tensors |= _siglip_tensors(generator)
    inputs = VISION_HIDDEN * SCALE**2
    # Embeddings of images are about as large as those of tokens.
    projection = torch.randn(HIDDEN, inputs, generator=generator) / inputs**0.5
    tensors["model.connector.modality_projection.proj.weight"] = projection

    tokenizer = make_tokenizer()
    places = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    special = [IMAGE, AROUND_IMAGE, WHOLE_IMAGE, "<end_of_utterance>", *places]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    vision: dict[str, object] = {
        "model_type": "idefics3_vision",
        "hidden_size": VISION_HIDDEN,
        "intermediate_size": 2 * VISION_HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": VISION_HEADS,
        "image_size": TILE_SIDE,
        "patch_size": PATCH_SIDE,
    }
    config: dict[str, object] = {
        "architectures": ["Idefics3ForConditionalGeneration"],
        "model_type": "idefics3",
        "image_token_id": tokenizer.token_to_id(IMAGE),
        "scale_factor": SCALE,
        "vision_config": vision,
        "text_config": _llama_config(IMAGE_VOCAB_SIZE),
        "tie_word_embeddings": False,
    }
    write_checkpoint(path, tensors, tokenizer, config)
    _write_json(
        path / "preprocessor_config.json",
        {
            "image_processor_type": "Idefics3ImageProcessor",
            "size": {"longest_edge": 2 * TILE_SIDE},
            "max_image_size": {"longest_edge": TILE_SIDE},
        },
    )
    _write_json(
        path / "processor_config.json",
        {"processor_class": "Idefics3Processor", "image_seq_len": TILE_TOKENS},
    )
    (path / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return path


def _siglip_tensors(generator: torch.Generator) -> Tensors:
    model = "model.vision_model"
    num_patches = (TILE_SIDE // PATCH_SIDE) ** 2
    tensors = {
        f"{model}.embeddings.patch_embedding.weight": _weight(
            generator, VISION_HIDDEN, 3, PATCH_SIDE, PATCH_SIDE
        ),
        f"{model}.embeddings.patch_embedding.bias": torch.zeros(VISION_HIDDEN),
        f"{model}.embeddings.position_embedding.weight": torch.randn(
            num_patches, VISION_HIDDEN, generator=generator
        ),
    }
    norms = [f"{model}.post_layernorm"]
    shapes = {}
    for layer in range(LAYERS):
        prefix = f"{model}.encoder.layers.{layer}"
        norms += [f"{prefix}.layer_norm1", f"{prefix}.layer_norm2"]
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            shapes[f"{prefix}.self_attn.{name}"] = (VISION_HIDDEN, VISION_HIDDEN)
        shapes[f"{prefix}.mlp.fc1"] = (2 * VISION_HIDDEN, VISION_HIDDEN)
        shapes[f"{prefix}.mlp.fc2"] = (VISION_HIDDEN, 2 * VISION_HIDDEN)
    for name in norms:
        tensors[f"{name}.weight"] = torch.ones(VISION_HIDDEN)
        tensors[f"{name}.bias"] = torch.zeros(VISION_HIDDEN)
    for name, shape in shapes.items():
        tensors[f"{name}.weight"] = _weight(generator, *shape)
        tensors[f"{name}.bias"] = torch.zeros(shape[0])
    return tensors


def tiny_lora(path: Path, seed: int) -> Path:
    """Write a random LoRA adapter for `tiny_llama` into the empty folder `path`; return it."""
    generator = torch.Generator().manual_seed(seed)
    sizes = {
        "q_proj": (HEADS * HEAD_DIM, HIDDEN),
        "k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
        "v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
        "o_proj": (HIDDEN, HEADS * HEAD_DIM),
    }
    tensors = {}
    for layer in range(LAYERS):
        for name, (rows, columns) in sizes.items():
            stem = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            a = torch.randn(LORA_RANK, columns, generator=generator) * WEIGHT_STD
            b = torch.randn(rows, LORA_RANK, generator=generator) * WEIGHT_STD
            tensors |= {f"{stem}.lora_A.weight": a, f"{stem}.lora_B.weight": b}
    save_file(tensors, path / "adapter_model.safetensors", metadata={"format": "pt"})
    _write_json(
        path / "adapter_config.json",
        {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": None,
            "r": LORA_RANK,
            "lora_alpha": LORA_RANK,
            "lora_dropout": 0.0,
            "bias": "none",
            "target_modules": list(sizes),
        },
    )
    return path
