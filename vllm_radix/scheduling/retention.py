# SPDX-License-Identifier: Apache-2.0
"""What a request may ask for the prefix that it leaves in the cache.

Over HTTP in ``vllm_xargs``, offline in ``SamplingParams.extra_args``:

* ``radix_priority``: an integer, lower is more important. Less important prefixes are evicted
  first, whatever the policy. 0 if it is not given (with the policy ``priority``: the request's own
  priority).
* ``radix_ttl_s``: seconds. Once nobody has used the prefix for so long, it is the first to go.
* ``radix_pin``: true keeps the prefix until nothing else is left to evict, for as long as
  ``radix_ttl_s`` allows. All pins together get a share of the pool; the oldest give way.
"""

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vllm.v1.request import Request

from vllm_radix.cache.manager import RadixKVCacheManager
from vllm_radix.compat import get_logger
from vllm_radix.tree import Match, Node

logger = get_logger(__name__)

PRIORITY, TTL, PIN = "radix_priority", "radix_ttl_s", "radix_pin"

_MAX_PRIORITY = 1 << 30


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
    if not extra or not any(name in extra for name in (PRIORITY, TTL, PIN)):
        return _NONE
    return Wishes(
        _read(extra, PRIORITY, _priority, f"an integer between -{_MAX_PRIORITY} and itself"),
        _read(extra, TTL, _seconds, "a positive number of seconds"),
        bool(_read(extra, PIN, _flag, "true or false")),
    )


def _read(extra: dict[str, Any], name: str, parse: Callable[[Any], Any], valid: str) -> Any:
    value = extra.get(name)
    if value is None:
        return None
    parsed = parse(value)
    if parsed is None:
        logger.warning_once("vllm-radix: %s=%r is ignored: it must be %s.", name, value, valid)
    return parsed


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


class Retention:
    """Keeps pins and times to live. O(1) where there are none.

    Args:
        manager: whose tree holds the prefixes.
        max_pinned_blocks: what all pins together may cover.
    """

    def __init__(self, manager: RadixKVCacheManager, max_pinned_blocks: int) -> None:
        self._manager = manager
        self._max_pinned_blocks = max_pinned_blocks
        # The oldest first, with the blocks of each; common ones count for each.
        self._pins: dict[Node, tuple[Match, int]] = {}
        self._num_pinned_blocks = 0
        self._lives: list[tuple[float, int, Node, int, float]] = []
        self._order = itertools.count()

    def on_end(self, request: Request, node: Node | None, now: float) -> None:
        """A request finished and gave its blocks back; what it leaves ends with ``node``."""
        wishes = wishes_of(request)
        if wishes.ttl_s is None and not wishes.pin:
            return
        if node is None or node.parent is None or node.detached:
            return
        if wishes.pin:
            self._pin(node)
        if wishes.ttl_s is not None:
            self._watch(node, now, wishes.ttl_s)

    def pinned(self, now: float) -> list[Match]:
        """What is pinned, after what has lived long enough was let go."""
        while self._lives and self._lives[0][0] <= now:
            _, _, node, last_access, ttl_s = heapq.heappop(self._lives)
            if node.parent is None or node.detached:
                continue
            if node.lock_count or node.last_access != last_access:
                self._watch(node, now, ttl_s)
            else:
                self._unpin(node)
                self._manager.tree.expire(node)
        return [match for match, _ in self._pins.values()]

    def _watch(self, node: Node, now: float, ttl_s: float) -> None:
        entry = (now + ttl_s, next(self._order), node, node.last_access, ttl_s)
        heapq.heappush(self._lives, entry)

    def _pin(self, node: Node) -> None:
        self._unpin(node)
        num_blocks = -(-node.end // self._manager.block_size)
        if num_blocks > self._max_pinned_blocks:
            logger.warning_once(
                "vllm-radix: %s is ignored for a prefix of %d blocks: all pins together may have "
                "%d.",
                PIN,
                num_blocks,
                self._max_pinned_blocks,
            )
            return
        self._pins[node] = (Match(node, node.end, 0, 0), num_blocks)
        self._num_pinned_blocks += num_blocks
        for other in list(self._pins):
            if other.parent is None or other.detached:
                self._unpin(other)
        while self._num_pinned_blocks > self._max_pinned_blocks:
            self._unpin(next(iter(self._pins)))

    def _unpin(self, node: Node) -> None:
        pin = self._pins.pop(node, None)
        if pin is not None:
            self._num_pinned_blocks -= pin[1]
