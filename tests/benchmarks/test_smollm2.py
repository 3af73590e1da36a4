# SPDX-License-Identifier: Apache-2.0
"""The converted model is the model: it speaks, and its prompts look as it was trained on them."""

from pathlib import Path
from typing import Any

import pytest
import transformers

from benchmarks.models import smollm2

CALL = {"name": "find", "arguments": {"what": "a key"}}
TOOL = {"name": "find", "description": "Find it.", "parameters": {"type": "object"}}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return transformers.AutoTokenizer.from_pretrained(smollm2.checkpoint())


def test_the_model_continues_a_sentence(tokenizer: Any) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(smollm2.checkpoint())
    prompt = tokenizer("The capital of France is", return_tensors="pt")
    output = model.generate(**prompt, max_new_tokens=1, do_sample=False)
    assert tokenizer.decode(output[0]) == "The capital of France is Paris"


def test_tokens_spell_the_text(tokenizer: Any) -> None:
    text = "Zwölf 128 <|im_start|>\n\tif x:"
    tokens = tokenizer(text).input_ids
    assert tokenizer.decode(tokens) == text
    # A control token is one token, and so is each digit.
    assert tokenizer.convert_tokens_to_ids("<|im_start|>") in tokens
    assert len(tokenizer("128").input_ids) == 3


def test_chat_is_chatml(tokenizer: Any) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    assert tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False) == (
        "<|im_start|>system\n"
        "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_tools_their_calls_and_results_are_in_the_prompt(tokenizer: Any) -> None:
    messages = [
        {"role": "system", "content": "Help."},
        {"role": "assistant", "content": None, "tool_calls": [{"function": CALL}]},
        {"role": "tool", "content": "under the mat"},
    ]
    prompt = tokenizer.apply_chat_template(
        messages, tools=[{"type": "function", "function": TOOL}], tokenize=False
    )
    assert prompt == (
        "<|im_start|>system\nHelp.\n\n"
        "You may call these functions, one JSON schema a line:\n"
        '{"name": "find", "description": "Find it.", "parameters": {"type": "object"}}\n'
        'To call one, write <tool_call>{"name": ..., "arguments": {...}}</tool_call>.<|im_end|>\n'
        "<|im_start|>assistant\n"
        '<tool_call>{"name": "find", "arguments": {"what": "a key"}}</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>under the mat</tool_response><|im_end|>\n"
    )


def test_the_checkpoint_is_converted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    smollm2.checkpoint()
    monkeypatch.delattr(smollm2, "convert")
    assert (smollm2.checkpoint() / "config.json").is_file()


def test_an_interrupted_conversion_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def convert(source: Path, folder: Path) -> None:
        (folder / "config.json").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(smollm2, "TARGET", tmp_path / "models" / "name")
    monkeypatch.setattr(smollm2, "convert", convert)
    with pytest.raises(KeyboardInterrupt):
        smollm2.checkpoint()
    assert list((tmp_path / "models").iterdir()) == []


def test_a_missing_package_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "TARGET", tmp_path / "name")
    monkeypatch.setattr(smollm2, "PACKAGE", "no_such_package")
    with pytest.raises(FileNotFoundError, match="run `make setup`"):
        smollm2.checkpoint()
