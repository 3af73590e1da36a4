# SPDX-License-Identifier: Apache-2.0
"""What a request may ask for the prefix that it leaves in the cache.

``radix_priority``, ``radix_ttl_s`` and ``radix_pin``, over HTTP in ``vllm_xargs``, offline in
``SamplingParams.extra_args``. What they mean is in docs/scheduling.md.
"""

import heapq
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from vllm.v1.request import Request

from vllm_radix.cache.manager import RadixKVCacheManager
from vllm_radix.compat import get_logger
from vllm_radix.tree import Bookmark, Match, Node

logger = get_logger(__name__)

PRIORITY, TTL, PIN = "radix_priority", "radix_ttl_s", "radix_pin"

_NAMES = {PRIORITY, TTL, PIN}

_MAX_PRIORITY = 1 << 30

_MAX_COMPLAINTS = 100
_complaints: set[tuple[str, str]] = set()


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a request asked for; None where it asked for nothing."""

    priority: int | None = None
    ttl_s: float | None = None
    pin: bool = False


_NONE = Wishes()


def wishes_of(request: Request) -> Wishes:
    """The wishes of a request. Invalid ones are ignored, with a line in the log."""
    params = request.sampling_params
    extra = params.extra_args if params is not None else None
    if not extra or not any(isinstance(name, str) and name.startswith("radix_") for name in extra):
        return _NONE
    for name in extra.keys() - _NAMES:
        if name.startswith("radix_"):
            _complain(name, "is not known: there are %s.", ", ".join(sorted(_NAMES)))
    return Wishes(
        _read(extra, PRIORITY, _priority, f"an integer from -{_MAX_PRIORITY} to {_MAX_PRIORITY}"),
        _read(extra, TTL, _seconds, "a positive number of seconds"),
        bool(_read(extra, PIN, _flag, "true or false")),
    )


def _read(extra: dict[str, Any], name: str, parse: Callable[[Any], Any], valid: str) -> Any:
    value = extra.get(name)
    if value is None:
        return None
    parsed = parse(value)
    if parsed is None:
        _complain(name, "= %.100r is ignored: it must be %s.", value, valid)
    return parsed


def _complain(name: str, text: str, *args: object) -> None:
    """Log a line, the first time for each name and text: clients may send anything, and often."""
    if (name, text) not in _complaints and len(_complaints) < _MAX_COMPLAINTS:
        _complaints.add((name, text))
        logger.warning("vllm-radix: %s " + text + " This is said once.", name, *args)


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _priority(value: Any) -> int | None:
    number = _number(value)
    valid = number is not None and number.is_integer() and abs(number) <= _MAX_PRIORITY
    return int(number) if number is not None and valid else None


def _seconds(value: Any) -> float | None:
    number = _number(value)
    return number if number is not None and number > 0 else None


def _flag(value: Any) -> bool | None:
    # Numbers and strings are all that some clients can send.
    return {"true": True, "1": True, "false": False, "0": False}.get(str(value).lower())


class _Claim(Bookmark):
    """What was asked for one prefix. While it is a pin, it survives a cut.

    Attributes:
        ttl_s: how long after a use it holds; None for a pin without end.
        due: when it ends if nobody uses the prefix until then.
        num_asked: tokens of the prefix that it was asked for, of which a cut may leave fewer.
        has_entry: whether it is in the heap of those that end.
    """

    __slots__ = ("due", "has_entry", "num_asked", "ttl_s")

    def __init__(self, ttl_s: float | None) -> None:
        super().__init__(survives_cut=False)
        self.ttl_s = ttl_s
        self.due = math.inf
        self.num_asked = 0
        self.has_entry = False

    def is_used(self, now: float) -> None:
        """The life of the prefix begins anew."""
        self.due = math.inf if self.ttl_s is None else now + self.ttl_s


class Retention:
    """Keeps pins and times to live: one claim for each end of a prefix. O(1) where there are none.

    Args:
        manager: whose tree holds the prefixes.
        max_pinned_blocks: what all pins together may cover.
    """

    def __init__(self, manager: RadixKVCacheManager, max_pinned_blocks: int) -> None:
        self._manager = manager
        self._max_pinned_blocks = max_pinned_blocks
        # The oldest first.
        self._pins: dict[_Claim, None] = {}
        # Each claim that ends at most once, at a time when it may be due.
        self._lives: list[tuple[float, int, _Claim]] = []
        self._max_lives = 0
        self._order = itertools.count()

    def on_end(self, request: Request, node: Node | None, now: float) -> None:
        """A request finished and gave its blocks back; what it leaves ends with ``node``.

        O(path) while there are times to live, and for a pin O(pins + nodes that they cover).
        """
        if node is None:
            return
        if self._lives:
            for part in _path(node):
                for claim in part.bookmarks or ():
                    if isinstance(claim, _Claim):
                        claim.is_used(now)
        wishes = wishes_of(request)
        if (wishes.pin or wishes.ttl_s is not None) and node.parent and not node.detached:
            self._claim(node, wishes, now)

    def pinned(self, now: float) -> list[Match]:
        """What is pinned, after what has lived long enough was let go. O(pins)."""
        in_use = []
        while self._lives and self._lives[0][0] <= now:
            _, _, claim = heapq.heappop(self._lives)
            claim.has_entry = False
            if claim.node is None or claim.ttl_s is None:
                continue
            if claim.due > now:
                self._watch(claim, claim.due)
            elif claim.node.lock_count:
                in_use.append((claim, now + claim.ttl_s))
            else:
                self._pins.pop(claim, None)
                self._manager.tree.expire(claim)
                self._manager.tree.remove(claim)
        for claim, look_again_at in in_use:
            # It is due later than that, for its life begins when it is given back.
            self._watch(claim, look_again_at)
        for claim in [claim for claim in self._pins if claim.node is None]:
            del self._pins[claim]
        return [Match(claim.node, claim.num_tokens, 0, 0) for claim in self._pins if claim.node]

    # ------------------------------------------------------------------ inside

    def _claim(self, node: Node, wishes: Wishes, now: float) -> None:
        pin = wishes.pin and self._is_within_quota(node.end)
        if not pin and wishes.ttl_s is None:
            return
        claim = _claim_at_end_of(node)
        if claim is None:
            claim = _Claim(wishes.ttl_s)
            self._manager.tree.place(claim, node)
        elif claim.ttl_s is not None:
            claim.ttl_s = None if wishes.ttl_s is None else max(claim.ttl_s, wishes.ttl_s)
        claim.num_asked = claim.num_tokens
        claim.is_used(now)
        if claim.ttl_s is not None:
            self._watch(claim, claim.due)
        if pin:
            self._pins.pop(claim, None)
            claim.survives_cut = True
            self._pins[claim] = None
            self._make_pins_fit()

    def _watch(self, claim: _Claim, due: float) -> None:
        if claim.has_entry:
            # Earlier than that; it is looked at again then.
            return
        if len(self._lives) > self._max_lives:
            # Claims of what was evicted, perhaps long before their time.
            for _, _, other in self._lives:
                other.has_entry = other.node is not None and other.ttl_s is not None
            self._lives = [life for life in self._lives if life[2].has_entry]
            heapq.heapify(self._lives)
            self._max_lives = 2 * len(self._lives) + 64
        claim.has_entry = True
        heapq.heappush(self._lives, (due, next(self._order), claim))

    def _is_within_quota(self, num_tokens: int) -> bool:
        num_blocks = -(-num_tokens // self._manager.block_size)
        if num_blocks > self._max_pinned_blocks:
            _complain(
                PIN,
                "is ignored for a prefix of %d blocks: all pins together may have %d.",
                num_blocks,
                self._max_pinned_blocks,
            )
        return num_blocks <= self._max_pinned_blocks

    def _make_pins_fit(self) -> None:
        """Give up the oldest pins beyond the quota, and those that newer ones make needless."""
        # Until which token a node is pinned, and until when that lasts.
        pinned: dict[Node, tuple[int, float]] = {}
        num_left = self._max_pinned_blocks
        num_blocks_before = self._manager.tree.num_blocks_before
        for claim in reversed(list(self._pins)):
            adds: dict[Node, tuple[int, float]] = {}
            num_more, end = 0, claim.num_tokens
            for part in _path(claim.node):
                known = pinned.get(part, (0, -math.inf))
                if end <= known[0] and claim.due <= known[1]:
                    # So is everything above.
                    break
                adds[part] = max(known, (end, claim.due))
                num_more += num_blocks_before(part, adds[part][0])
                num_more -= num_blocks_before(part, known[0])
                end = part.start
            if not adds or num_more > num_left:
                self._unpin(claim)
            else:
                pinned.update(adds)
                num_left -= num_more

    def _unpin(self, claim: _Claim) -> None:
        del self._pins[claim]
        claim.survives_cut = False
        if claim.ttl_s is None or claim.num_tokens < claim.num_asked:
            # Without the pin it would have been gone.
            self._manager.tree.remove(claim)


def _path(node: Node | None) -> Iterator[Node]:
    """The nodes from ``node`` up to below the root."""
    while node is not None and node.parent is not None:
        yield node
        node = node.parent


def _claim_at_end_of(node: Node) -> _Claim | None:
    for claim in node.bookmarks or ():
        if isinstance(claim, _Claim) and claim.num_tokens == node.end:
            return claim
    return None
