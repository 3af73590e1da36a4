# SPDX-License-Identifier: Apache-2.0
"""Checkpoints for the engine tests, made offline.

`tiny_llama` and `tiny_lora` write a random Llama and a LoRA adapter for it, small enough to start
in a second. Random weights are enough to compare two runs of the same engine, provided that the
output depends on the whole prompt and that no two tokens are nearly tied; the constants below are
chosen for both, and `test_models.py` holds them to it.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

VOCAB_SIZE = 512
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


def _tokenizer() -> Tokenizer:
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


def tiny_llama(path: Path) -> Path:
    """Write a random float32 Llama with its tokenizer into the empty folder `path`; return it."""
    generator = torch.Generator().manual_seed(1)

    def weight(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * WEIGHT_STD

    tensors = {
        # Unit embeddings: what a position holds is its token, not the noise of the layers.
        "model.embed_tokens.weight": torch.randn(VOCAB_SIZE, HIDDEN, generator=generator),
        "model.norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": weight(VOCAB_SIZE, HIDDEN),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        tensors |= {
            f"{prefix}.input_layernorm.weight": torch.ones(HIDDEN),
            f"{prefix}.post_attention_layernorm.weight": torch.ones(HIDDEN),
            f"{prefix}.self_attn.q_proj.weight": weight(HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}.self_attn.k_proj.weight": weight(KV_HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}.self_attn.v_proj.weight": weight(KV_HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}.self_attn.o_proj.weight": weight(HIDDEN, HEADS * HEAD_DIM),
            f"{prefix}.mlp.gate_proj.weight": weight(INTERMEDIATE, HIDDEN),
            f"{prefix}.mlp.up_proj.weight": weight(INTERMEDIATE, HIDDEN),
            f"{prefix}.mlp.down_proj.weight": weight(HIDDEN, INTERMEDIATE),
        }
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})

    tokenizer = _tokenizer()
    tokenizer.save(str(path / "tokenizer.json"))
    bos, eos, pad = (tokenizer.token_to_id(t) for t in (BOS, EOS, PAD))
    _write_json(
        path / "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": HIDDEN,
            "intermediate_size": INTERMEDIATE,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "head_dim": HEAD_DIM,
            "vocab_size": VOCAB_SIZE,
            "max_position_embeddings": MAX_MODEL_LEN,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": False,
            "torch_dtype": "float32",
            "bos_token_id": bos,
            "eos_token_id": eos,
            "pad_token_id": pad,
        },
    )
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
    return path


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
