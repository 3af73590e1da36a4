# SPDX-License-Identifier: Apache-2.0
"""A tree with a pool of blocks beside it, and what a request does with them."""

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from vllm_radix.tree import Key, Match, Namespace, Node, RadixTree, make_policy, pack_tokens

BASE = Namespace()


class Pool:
    """Blocks are handed out in the order 0, 1, 2, ... and reused when all have been.

    Those that the tree does not take are free again at once: nothing reads them here.
    """

    def __init__(self, block_size: int, num_blocks: int = 64, policy: str = "lru") -> None:
        self.tree = RadixTree(block_size, num_blocks, make_policy(policy))
        self.free = list(range(num_blocks))

    def match(
        self, tokens: Sequence[int], limit: int | None = None, namespace: Namespace = BASE
    ) -> Match:
        return self.tree.match(Key.of(tokens, namespace), limit)

    def num_cached(self, tokens: Sequence[int], namespace: Namespace = BASE) -> int:
        """How many tokens of a prompt are found."""
        return self.match(tokens, namespace=namespace).num_tokens

    def admit(
        self,
        tokens: Sequence[int],
        num_blocks: int | None = None,
        namespace: Namespace = BASE,
        priority: int = 0,
    ) -> Node:
        """Lock what is cached of a prompt, in whole blocks."""
        match = self.match(tokens, namespace=namespace)
        if num_blocks is None:
            num_blocks = match.num_tokens // self.tree.block_size
        if num_blocks == 0:
            return self.tree.enter(namespace)
        return self.tree.acquire(match, num_blocks, priority)

    def compute(self, handle: Node, tokens: Sequence[int], priority: int = 0) -> Node:
        """Cache the tokens that follow a handle, the last block partly filled if need be."""
        size = self.tree.block_size
        num_blocks, rest = divmod(len(tokens), size)
        if num_blocks:
            full, blocks = tokens[: num_blocks * size], self.take(num_blocks)
            extension = self.tree.extend(handle, pack_tokens(full), blocks, priority)
            handle = extension.node
            self.free += blocks[: extension.num_duplicates] + extension.replaced + extension.freed
        if rest:
            (block,) = self.take(1)
            extension = self.tree.add_tail(handle, pack_tokens(tokens[-rest:]), block, priority)
            handle = extension.node
            self.free += [block][: extension.num_duplicates] + extension.freed
        self.tree.check()
        return handle

    def start(self, tokens: Sequence[int], namespace: Namespace = BASE, priority: int = 0) -> Node:
        """Admit a request and compute all of its prompt."""
        handle = self.admit(tokens, namespace=namespace, priority=priority)
        return self.compute(handle, tokens[handle.end :], priority)

    def finish(self, handle: Node, num_tokens: int | None = None) -> list[int]:
        """End a request, of which only the first ``num_tokens`` tokens were computed."""
        freed: list[int] = []
        if num_tokens is not None:
            first = num_tokens // self.tree.block_size
            for block in self.tree.path_blocks(handle, first + 1)[first:]:
                freed += self.tree.detach(block)
                self.tree.check()
        freed += self.tree.release(handle)
        self.tree.check()
        self.free += freed
        return freed

    def serve(self, tokens: Sequence[int], namespace: Namespace = BASE, priority: int = 0) -> None:
        """A request from its beginning to its end."""
        self.finish(self.start(tokens, namespace, priority))

    def evict(self, num_blocks: int) -> list[int]:
        freed = self.tree.evict(num_blocks)
        self.tree.check()
        self.free += freed
        return freed

    def take(self, num_blocks: int) -> list[int]:
        taken, self.free = self.free[:num_blocks], self.free[num_blocks:]
        assert len(taken) == num_blocks, "the pool of this test is too small"
        return taken

    def edges(self) -> list[tuple[int, list[int], list[int]]]:
        """What a match can reach, as (start, tokens, blocks) of each node, sorted."""
        return sorted(
            (node.start, memoryview(node.edge).cast("i").tolist(), list(node.blocks))
            for node in self.tree
            if node.parent is not None
        )


def count_steps(function: Callable[[], Any]) -> int:
    """How many bytecode instructions a call executes: a measure of cost without a clock."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
        nonlocal count
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        count += event == "opcode"
        return trace

    outer = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(outer)
    return count
