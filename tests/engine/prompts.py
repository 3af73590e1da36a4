# SPDX-License-Identifier: Apache-2.0
"""Prompts for the tiny model: random token ids, the same in every run."""

import random

from .engines import Kind
from .models import VOCAB_SIZE

FIRST_PLAIN_TOKEN = 3  # 0, 1 and 2 are the special tokens


def tokens(seed: int | str, length: int) -> tuple[int, ...]:
    """`length` token ids that depend on `seed` alone."""
    rng = random.Random(seed)
    return tuple(rng.randrange(FIRST_PLAIN_TOKEN, VOCAB_SIZE) for _ in range(length))


def other_than(token: int) -> int:
    """A plain token other than `token`."""
    return token + 1 if token + 1 < VOCAB_SIZE else FIRST_PLAIN_TOKEN


def whole_blocks(length: int, block_size: int) -> int:
    """The length of the whole blocks among `length` tokens."""
    return length // block_size * block_size


def reusable(kind: Kind, length: int, block_size: int) -> int:
    """How many of `length` cached tokens an engine of this kind can reuse."""
    return length if kind == "radix" else whole_blocks(length, block_size)
