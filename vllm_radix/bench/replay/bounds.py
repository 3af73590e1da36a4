# SPDX-License-Identifier: Apache-2.0
"""What hit rate a cache could reach: of any size, and of one size with foresight.

The second is Belady's rule: evict what is needed again last. It serves requests one after the
other in a given order, so it bounds every eviction policy under that order, but not a scheduler
that changes the order.

Both reuse single tokens, so they bound caches that reuse whole blocks as well.
"""

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from vllm_radix.bench.replay.sessions import Call, Tokens

_NEVER = 1 << 62


@dataclass(eq=False, slots=True)
class _Segment:
    """Tokens that every request has either together or not at all."""

    tokens: Tokens
    depth: int
    """Tokens before it."""
    children: "dict[int, _Segment]" = field(default_factory=dict)
    num_kept: int = 0
    """How many of its tokens, from the first, are cached."""
    next_use: int = _NEVER
    """The number of the request that looks it up next."""

    @property
    def end(self) -> int:
        return self.depth + len(self.tokens)


@dataclass(frozen=True)
class _Visit:
    """One request."""

    path: list[_Segment]
    """Its prompt and answer, as far as their KV is computed."""
    num_looked_up: int
    """How many segments of the path it looks up."""
    next_uses: list[int]
    """For each segment, which request looks it up next, without a request between them that
    would compute it anyway."""


class BoundFinder:
    """Bounds for requests in the order in which they arrive."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._num_prompt_tokens = sum(len(call.prompt) for call in calls)
        self._root = _Segment(np.empty(0, np.int32), 0)
        texts = [call.text() for call in calls]
        # The last prompt token is always computed, and the last token of an answer never is.
        ends = [(len(call.prompt) - 1, call.num_tokens - 1) for call in calls]
        for text, (looked_up, left) in zip(texts, ends, strict=True):
            self._add(text[:left])
            self._split_at(text, looked_up)
        self._visits = self._visit_all(texts, ends)
        self.footprint = self._run(None)[1]
        """Tokens that an unlimited cache holds in the end."""

    def unlimited(self) -> float:
        """Hit rate of a cache that keeps everything."""
        return self._hit_rate(None)

    def clairvoyant(self, capacity: int) -> float:
        """Hit rate of a cache of ``capacity`` tokens that evicts what is needed again last."""
        return self._hit_rate(capacity)

    def _hit_rate(self, capacity: int | None) -> float:
        return self._run(capacity)[0] / self._num_prompt_tokens

    # ------------------------------------------------------------------ the trie of all requests

    def _add(self, text: Tokens) -> None:
        node, position = self._root, 0
        while position < len(text):
            child = node.children.get(int(text[position]))
            if child is None:
                node.children[int(text[position])] = _Segment(text[position:], position)
                return
            common = _common(child.tokens, text[position:])
            if common < len(child.tokens):
                _split(child, common)
            node, position = child, position + common

    def _split_at(self, text: Tokens, end: int) -> None:
        """See to it that a segment ends where the first ``end`` tokens of ``text`` do."""
        node = self._root
        while node.end < end:
            node = node.children[int(text[node.end])]
        if end < node.end:
            _split(node, end - node.depth)

    def _visit_all(self, texts: list[Tokens], ends: list[tuple[int, int]]) -> list[_Visit]:
        visits = []
        upcoming: dict[_Segment, int] = {}
        # Backwards, as what matters of a request is what comes after it.
        for number in range(len(texts) - 1, -1, -1):
            looked_up, left = ends[number]
            node, path = self._root, []
            while node.end < left:
                node = node.children[int(texts[number][node.end])]
                path.append(node)
            visits.append(
                _Visit(
                    path,
                    sum(segment.end <= looked_up for segment in path),
                    [upcoming.get(segment, _NEVER) for segment in path],
                )
            )
            for segment in path:
                upcoming[segment] = number if segment.end <= looked_up else _NEVER
        return visits[::-1]

    # ------------------------------------------------------------------ the cache

    def _run(self, capacity: int | None) -> tuple[int, int]:
        """Serve all requests; returns the tokens found in the cache, and those in it at the end."""
        for visit in self._visits:
            for segment in visit.path:
                segment.num_kept = 0
        hits = size = 0
        order = itertools.count()
        # What is needed last comes first; of what is needed at the same time, the deepest.
        victims: list[tuple[int, int, int, _Segment]] = []
        for visit in self._visits:
            for segment in visit.path[: visit.num_looked_up]:
                hits += segment.num_kept
                if segment.num_kept < len(segment.tokens):
                    break
            for segment, next_use in zip(visit.path, visit.next_uses, strict=True):
                size += len(segment.tokens) - segment.num_kept
                segment.num_kept = len(segment.tokens)
                segment.next_use = next_use
                heapq.heappush(victims, (-next_use, -segment.depth, next(order), segment))
            while capacity is not None and size > capacity:
                negative_use, _, _, segment = victims[0]
                if segment.next_use != -negative_use or not segment.num_kept:
                    heapq.heappop(victims)
                    continue
                evicted = min(segment.num_kept, size - capacity)
                segment.num_kept -= evicted
                size -= evicted
        return hits, size


def _common(a: Tokens, b: Tokens) -> int:
    size = min(len(a), len(b))
    differing = np.flatnonzero(a[:size] != b[:size])
    return int(differing[0]) if len(differing) else size


def _split(segment: _Segment, length: int) -> None:
    """Make the part of a segment after its first ``length`` tokens its child."""
    lower = _Segment(segment.tokens[length:], segment.depth + length, segment.children)
    segment.tokens = segment.tokens[:length]
    segment.children = {int(lower.tokens[0]): lower}
