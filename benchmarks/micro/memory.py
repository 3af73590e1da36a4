# SPDX-License-Identifier: Apache-2.0
"""What a cached block costs the engine core in memory."""

import gc
import tracemalloc
from collections.abc import Callable

from benchmarks.micro.contenders import (
    BLOCK_SIZE,
    Contender,
    as_received,
    ours,
    random_tokens,
    stock,
)
from benchmarks.micro.figures import Figure, share_of_stock


def memory(num_blocks: int, lengths: tuple[int, ...]) -> list[Figure]:
    """Figures for a pool of ``num_blocks`` blocks, full of finished prompts of one length.

    Args:
        num_blocks: the size of the pool.
        lengths: of the prompts in tokens, a figure for each.
    """
    return [
        Figure(
            f"prompts of {length:,} tokens",
            _bytes_per_block(ours, num_blocks, length),
            _bytes_per_block(stock, num_blocks, length),
            share_of_stock(1),
            unit="bytes",
        )
        for length in lengths
    ]


def _bytes_per_block(make: Callable[[int], Contender], num_blocks: int, length: int) -> float:
    """All that the scheduler keeps, its pool of blocks included, by block."""
    # Whatever the first scheduler of a process leaves behind is not a matter of blocks.
    make(64).run(random_tokens(length // 100 + 1, 0))
    gc.collect()
    tracemalloc.start()
    try:
        contender = make(num_blocks + 1)
        for number in range(num_blocks // (length // BLOCK_SIZE)):
            contender.run(as_received(random_tokens(length, length, number)))
        gc.collect()
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return used / num_blocks
