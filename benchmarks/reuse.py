# SPDX-License-Identifier: Apache-2.0
"""How much of many short prompts is reused, at each block size: ours, stock, and the ideal.

    python -m benchmarks.reuse agent_prompts.jsonl

The file has a prompt a line, ``{"prompt": ...}``, such as the generative agents' of SGLang's
benchmarks. The prompts are tokenized for SmolLM2 and go one after the other through the two block
managers with an unlimited pool; no model runs.
"""

import json
import logging
import sys
import time
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

logging.getLogger("vllm").setLevel(logging.ERROR)

console = Console()
BLOCK_SIZES = (16, 32, 64, 128)


def read_prompts(path: Path) -> list[str]:
    """The prompts of a JSONL file.

    Raises:
        ValueError: naming the line that is not an object with a string ``prompt``.
    """
    prompts = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                prompts.append(json.loads(line)["prompt"])
            except (ValueError, KeyError, TypeError):
                raise ValueError(
                    f'{path}, line {number}: expected an object with a "prompt".'
                ) from None
    return prompts


def ideal_share(prompts: list[list[int]]) -> float:
    """Share of the tokens that an earlier prompt has at the same place after the same ones.

    At least one token of each prompt has to be computed.
    """
    root: dict[int, Any] = {}
    reused = 0
    for prompt in prompts:
        node, depth, known = root, 0, True
        for token in prompt:
            known = known and token in node
            depth += known
            node = node.setdefault(token, {})
        reused += min(depth, len(prompt) - 1)
    return reused / sum(map(len, prompts))


def reused_share(prompts: list[list[int]], block_size: int, ours: bool) -> float:
    """Share of the prompts' tokens that the block manager finds cached."""
    import torch
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.request import Request

    from vllm_radix.cache.manager import RadixKVCacheManager

    register_all_kvcache_specs(None)  # type: ignore[no-untyped-call]
    init_none_hash(sha256)
    hasher = None if ours else get_request_block_hasher(block_size, sha256)
    num_blocks = 1 + sum(len(prompt) // block_size + 2 for prompt in prompts)
    spec = FullAttentionSpec(
        block_size=block_size, num_kv_heads=1, head_size=64, dtype=torch.float32
    )
    manager = (RadixKVCacheManager if ours else KVCacheManager)(
        KVCacheConfig(num_blocks, [], [KVCacheGroupSpec(["layer"], spec)]),
        max_model_len=1 << 20,
        scheduler_block_size=block_size,
        hash_block_size=block_size,
        enable_caching=True,
    )
    reused = 0
    for number, prompt in enumerate(track(prompts, f"{block_size} tokens", console=console)):
        request = Request(
            str(number), prompt, SamplingParams(max_tokens=1), None, block_hasher=hasher
        )
        manager.new_step_starts()
        blocks, num_cached, _ = manager.get_computed_blocks(request)
        manager.allocate_slots(request, len(prompt) - num_cached, num_cached, blocks)
        _, retained = manager.take_kv_cache_block_copies()
        manager.block_pool.free_blocks(retained)
        request.num_computed_tokens = len(prompt)
        if isinstance(manager, RadixKVCacheManager):
            manager.keep_computed_tokens(request)
        manager.free(request)
        reused += num_cached
    return reused / sum(map(len, prompts))


def source_seconds(num_children: int, rounds: int = 2_000) -> float:
    """Median time to find the block to copy where ``num_children`` prompts part inside it."""
    from vllm_radix.tree import Key, RadixTree, pack_tokens

    tree = RadixTree(16, num_children + 1)
    shared = list(range(8))
    handle = tree.enter(Key.of(shared).namespace)
    for child in range(num_children):
        data = pack_tokens([*shared, *(1_000 + child + i * num_children for i in range(8))])
        other = tree.enter(Key.of(shared).namespace)
        tree.release(tree.extend(other, data, [child]).node)
    key = Key.of([*shared, 5, 5])
    seconds = []
    for _ in range(rounds):
        match = tree.match(key)
        start = time.perf_counter()
        source = tree.block_after(match, 0)
        seconds.append(time.perf_counter() - start)
        assert source is not None and match.num_tokens == len(shared)
    tree.release(handle)
    return median(seconds)


def main(
    prompts_file: Annotated[Path, typer.Argument(help="JSONL with a prompt a line.")],
    model: Annotated[
        Path | None, typer.Option(help="Folder with the tokenizer; SmolLM2's by default.")
    ] = None,
) -> None:
    """Print the share of prompt tokens reused at each block size."""
    from transformers import AutoTokenizer

    from benchmarks.models.smollm2 import checkpoint

    try:
        texts = read_prompts(prompts_file)
    except (OSError, ValueError) as error:
        sys.exit(str(error))
    tokenizer = AutoTokenizer.from_pretrained(model or checkpoint())
    prompts = [tokenizer(text)["input_ids"] for text in texts]
    table = Table(title=f"Share of {sum(map(len, prompts)):,} prompt tokens that is reused")
    for column in ("block size", "stock", "ours", "ideal"):
        table.add_column(column, justify="right")
    ideal = ideal_share(prompts)
    for block_size in BLOCK_SIZES:
        shares = [reused_share(prompts, block_size, ours) for ours in (False, True)]
        table.add_row(str(block_size), *(f"{share:.3f}" for share in shares), f"{ideal:.3f}")
    console.print(table)
    microseconds = source_seconds(10_000) * 1e6
    console.print(f"Finding the block to copy among 10,000 children: {microseconds:.1f} us")


if __name__ == "__main__":
    typer.run(main)
