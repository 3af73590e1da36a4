# SPDX-License-Identifier: Apache-2.0
"""The keys of vLLM's requests: what of a request decides whose KV it may share."""

import hashlib
import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import islice

import numpy as np
import torch
from vllm.v1.request import Request

from vllm_radix.tree import Key, LabelTable, Namespace, RadixTree, pack_tokens
from vllm_radix.tree.key import TOKEN_BYTES

_EDGES_AT_A_TIME = 10_000


class RequestKeys:
    """Makes the keys of requests, and keeps one while its request waits or prefills.

    Args:
        block_size: tokens in a block.
        tree: the tree that the keys are for.
    """

    def __init__(self, block_size: int, tree: RadixTree) -> None:
        self._block_size = block_size
        self._tree = tree
        self._labels = LabelTable(self._labels_in_use, lambda: tree.num_cached_blocks)
        # The labels of the key that is being made, and what they stand for.
        self._being_put: dict[int, Hashable] = {}
        self._keys: dict[str, Key] = {}
        # How often the weights behind an adapter's id were replaced.
        self._reloads: dict[int, int] = {}

    def key(self, request: Request) -> Key:
        """The key of all tokens that the request has now. O(1) if it was asked for before."""
        key = self._keys.get(request.request_id)
        if key is None or len(key) != request.num_tokens:
            data = self._pack(request, 0, request.num_tokens)
            key = self._keys[request.request_id] = Key(self.namespace(request), data)
        return key

    def namespace(self, request: Request) -> Namespace:
        """Who may share with the request: the same adapter and the same salt."""
        lora = request.lora_request
        if lora is None:
            return Namespace(None, request.cache_salt)
        # The name may be reused for other weights, the id may have been reloaded in place, and
        # the path is what vLLM's own hashes tell adapters apart by.
        adapter = (
            lora.lora_name,
            lora.lora_int_id,
            lora.lora_path,
            self._reloads.get(lora.lora_int_id, 0),
        )
        return Namespace(adapter, request.cache_salt)

    def data(self, request: Request, start: int, stop: int) -> bytes:
        """The packed tokens and labels at positions ``[start, stop)``. O(stop - start)."""
        key = self._keys.get(request.request_id)
        if key is not None:
            if stop <= len(key):
                return key.data[start * TOKEN_BYTES : stop * TOKEN_BYTES]
            # The prefill is over; what the request decodes is packed as it comes.
            del self._keys[request.request_id]
        return self._pack(request, start, stop)

    def forget(self, request: Request) -> None:
        """The request ended or was preempted."""
        self._keys.pop(request.request_id, None)

    def adapter_reloaded(self, lora_int_id: int) -> None:
        """The adapter has other weights now: nothing computed with it before may be found."""
        self._reloads[lora_int_id] = self._reloads.get(lora_int_id, 0) + 1
        # Keys that were made before would find it.
        self._keys.clear()

    def _pack(self, request: Request, start: int, stop: int) -> bytes:
        tokens: Sequence[int] = request.all_token_ids
        if start > 0 or stop < len(tokens):
            tokens = tokens[start:stop]
        packed = pack_tokens(tokens)
        if start >= request.num_prompt_tokens:
            return packed
        is_forged = bool((np.frombuffer(packed, np.int32) < 0).any())
        if not request.mm_features and request.prompt_embeds is None and not is_forged:
            return packed
        self._being_put.clear()
        data = bytearray(packed)
        if is_forged:
            # No token id may pass for a label, not even one that no tokenizer gives.
            data[:] = _replaced(packed, lambda value: self._label(value) if value < 0 else value)
        # Placeholder tokens look alike whatever they stand for; labels don't. What stands at a
        # position counts too: an item may have text in it, such as the time stamps of a video, or
        # another item, such as its sound.
        for feature in request.mm_features:
            assert feature.identifier is not None
            offset = feature.mm_position.offset
            first, last = max(offset, start), min(offset + feature.mm_position.length, stop)
            if first < last:
                span = slice((first - start) * TOKEN_BYTES, (last - start) * TOKEN_BYTES)
                data[span] = self._labelled(data[span], feature.identifier)
        if request.prompt_embeds is not None:
            # Embeddings have no tokens, or stand between them: each block's rows are an item.
            embeds = request.prompt_embeds[start:stop]
            for first in range(0, len(embeds), self._block_size):
                rows = embeds[first : first + self._block_size]
                span = slice(first * TOKEN_BYTES, (first + len(rows)) * TOKEN_BYTES)
                standing = tuple(map(self._content, memoryview(data[span]).cast("i")))
                label = self._label(("embeds", _digest(rows), standing))
                data[span] = pack_tokens((label,)) * len(rows)
        return bytes(data)

    def _labelled(self, packed: bytearray, identifier: str) -> bytes:
        """The labels for an item that stands in the place of ``packed`` tokens. O(tokens)."""
        return _replaced(packed, lambda value: self._label((identifier, self._content(value))))

    def _label(self, content: Hashable) -> int:
        label = self._labels.label(content)
        self._being_put[label] = content
        return label

    def _content(self, value: int) -> Hashable:
        """What a token or a label of the key that is being made stands for.

        Labels themselves are no part of what others stand for: they may be forgotten earlier.
        """
        return self._being_put.get(value, value)

    def _labels_in_use(self) -> Iterator[int]:
        # A sweep must not take seconds where a large tree holds few labels: many edges at a time.
        edges = (node.edge for node in self._tree.all_nodes())
        while some := list(islice(edges, _EDGES_AT_A_TIME)):
            yield from _labels_in(b"".join(some))
        for key in self._keys.values():
            yield from _labels_in(key.data)
        yield from self._being_put


def _replaced(packed: bytes | bytearray, replacement: Callable[[int], int]) -> bytes:
    """``packed`` with another value for each, which is asked for once if it is equal. O(tokens)."""
    num_tokens = len(packed) // TOKEN_BYTES
    first = packed[:TOKEN_BYTES]
    if packed == first * num_tokens:
        value = replacement(int.from_bytes(first, sys.byteorder, signed=True))
        return value.to_bytes(TOKEN_BYTES, sys.byteorder, signed=True) * num_tokens
    # Equal values stand in long runs: what is not vectorised is done by run.
    values = np.frombuffer(packed, np.int32)
    ends = np.append(np.flatnonzero(values[1:] != values[:-1]) + 1, num_tokens)
    of_runs = values[ends - 1].tolist()
    new_of = {value: replacement(value) for value in set(of_runs)}
    new = np.array([new_of[value] for value in of_runs], np.int32)
    lengths = np.concatenate((ends[:1], ends[1:] - ends[:-1]))
    return np.repeat(new, lengths).tobytes()


def _labels_in(data: bytes) -> list[int]:
    values = np.frombuffer(data, np.int32)
    labels: list[int] = np.unique(values[values < 0]).tolist()
    return labels


def _digest(rows: torch.Tensor) -> bytes:
    data = rows.detach().cpu().contiguous().view(torch.uint8).numpy()
    return hashlib.sha256(data.tobytes()).digest()
