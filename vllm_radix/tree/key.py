# SPDX-License-Identifier: Apache-2.0
"""What is matched: tokens and labels within a namespace.

Tokens are packed as native int32 into ``bytes``, because comparing an edge with a key is then one
``memcmp`` and needs no allocation. Non-negative values are token ids; negative ones are labels
from a :class:`LabelTable`, which stand for content that the token ids do not tell apart (the
placeholders of an image, say).
"""

import struct
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple

TOKEN_BYTES = 4


class Namespace(NamedTuple):
    """Who may share with whom: two keys share only if their namespaces are equal.

    A pair rather than a joined string, so that no choice of salt can imitate an adapter, and so
    that an absent salt (``None``) differs from an empty one.
    """

    adapter: Hashable = None
    """Identity of the LoRA adapter, or None for the base model."""
    salt: str | None = None
    """The request's ``cache_salt``."""


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Pack ``n`` token ids into ``4 * n`` bytes.

    Raises:
        OverflowError: if an id does not fit into an int32.
    """
    try:
        # Faster than numpy for a list, at any length.
        return struct.pack(f"{len(tokens)}i", *tokens)
    except struct.error as error:
        raise OverflowError(f"a token id is no int32: {error}") from None


class Key:
    """A namespace and a sequence of int32 tokens, immutable."""

    __slots__ = ("data", "namespace", "tokens")

    def __init__(self, namespace: Namespace, data: bytes) -> None:
        self.namespace = namespace
        self.data = data
        self.tokens = memoryview(data).cast("i")

    @classmethod
    def of(cls, tokens: Sequence[int], namespace: Namespace | None = None) -> "Key":
        """The key of a sequence of token ids (and labels)."""
        return cls(namespace or Namespace(), pack_tokens(tokens))

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        return f"Key({len(self)} tokens, {self.namespace})"


class LabelTable:
    """Interns content identifiers as negative int32 labels.

    A label stands for exactly one identifier as long as any key or edge holds it, so two items
    can never be taken for one another, whatever their identifiers hash to. Identifiers that
    nothing refers to any more are dropped when the table has doubled since the last time, and has
    grown by the number of cached blocks that have to be looked through.

    Args:
        labels_in_use: returns every label that a cached edge or a live key still holds.
        num_blocks: returns how many blocks are cached.
    """

    MIN_SIZE_TO_SWEEP = 1024
    LOWEST = -(2**31)

    def __init__(
        self, labels_in_use: Callable[[], Iterable[int]], num_blocks: Callable[[], int]
    ) -> None:
        self._labels_in_use = labels_in_use
        self._num_blocks = num_blocks
        self._label_of: dict[Hashable, int] = {}
        self._next = -1
        # The labels that were in use when all had been given out.
        self._taken: set[int] = set()
        self._sweep_at = self.MIN_SIZE_TO_SWEEP

    def __len__(self) -> int:
        return len(self._label_of)

    def label(self, identifier: Hashable) -> int:
        """The label of ``identifier``. Amortised O(tokens of a block), where little waits."""
        label = self._label_of.get(identifier)
        if label is None:
            if len(self._label_of) >= self._sweep_at:
                self._sweep()
            label = self._label_of[identifier] = self._unused()
        return label

    def _unused(self) -> int:
        # No label is given out twice before all have been: until then a stale one can only miss.
        while self._next < self.LOWEST or self._next in self._taken:
            if self._next < self.LOWEST:
                self._sweep()
                self._taken = set(self._label_of.values())
                self._next = 0
            self._next -= 1
        label = self._next
        self._next -= 1
        return label

    def _sweep(self) -> None:
        in_use = set(self._labels_in_use())
        self._label_of = {i: label for i, label in self._label_of.items() if label in in_use}
        size = len(self._label_of)
        self._sweep_at = max(self.MIN_SIZE_TO_SWEEP, size + max(size, self._num_blocks()))
