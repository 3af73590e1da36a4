# SPDX-License-Identifier: Apache-2.0
"""A tokenizer that takes each word for a token."""

from pathlib import Path

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

WORDS = ["<unk>", "<s>", *"abcdefgh"]


def save_tokenizer(folder: Path, *, marks_beginning: bool = False) -> str:
    """Write the tokenizer to ``folder``; it may set ``<s>`` before each prompt."""
    words = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = WhitespaceSplit()
    if marks_beginning:
        words.post_processor = TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(folder)
    return str(folder)


def words(tokens: np.ndarray) -> str:
    """What ``tokens`` say; made-up ones and those of images are question marks."""
    return " ".join(WORDS[token] if token < len(WORDS) else "?" for token in tokens)
