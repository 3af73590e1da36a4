# SPDX-License-Identifier: Apache-2.0
"""Whether a request had better wait, for the sake of what is cached.

vLLM starts a request as soon as its prompt fits. With the cache full, its blocks then push out
prefixes, also those of conversations that continue in a moment; what was computed once is computed
again and again, as in a machine that swaps. As in such a machine, the cure is to run fewer programs
at a time (Denning, 1968): so many that what they use soon stays in memory.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from vllm.v1.request import Request

from vllm_radix.cache.manager import RadixKVCacheManager
from vllm_radix.scheduling.lane import Waiting
from vllm_radix.scheduling.returns import ReturnEstimator
from vllm_radix.tree import Match, Node

_LIKELY = 0.4
"""How probable it must be that an idle prefix is used again soon for it to be kept.

Measured with ``vllm-radix replay`` on agents: from 0.3 to 0.5, the hit rate falls by 0.02 and the
makespan by a tenth.
"""

_MAX_WANTED = 256
"""How many waiting requests, the first ones, have a claim to what is cached of them."""

_SMOOTHING = 0.05
"""Weight of a new observation in a running mean."""


class OpenGate:
    """Holds nothing back."""

    is_open = True

    def is_held(self, waiting: Waiting) -> bool:
        """False."""
        return False

    def on_admitted(self, waiting: Waiting) -> None:
        """Nothing to note."""


class AdmissionControl:
    """Holds a request back while running it would push out what is about to be used.

    About to be used are the prefixes of the requests that stand ahead of it, and idle ones that
    are likely to be used again before it would have finished. Held as well is who would compute
    what a running request is about to. All of it is observed; there is nothing to tune. A request
    is never held while no other can run, nor for memory once nobody was started for as long as a
    request runs on average.

    Args:
        manager: whose tree is told what to evict last.
        running: the requests that run.
        is_busy: whether one of them can go on in this step.
    """

    is_open = False

    def __init__(
        self,
        manager: RadixKVCacheManager,
        running: Callable[[], Sequence[Request]],
        is_busy: Callable[[], bool],
    ) -> None:
        self._manager = manager
        self._running = running
        self._is_busy = is_busy
        self.clock: Callable[[], float] = time.monotonic
        """Seconds. Replaced where time is virtual."""
        self._returns = ReturnEstimator()
        self._started_at: dict[str, float] = {}
        self._mean_residence = 0.0
        self._mean_output = 0.0
        self._num_free_tokens = 0.0
        # Evictable tokens that only those before a request in the order are about to use; for one
        # that stands behind all of these, what they are about to use together.
        self._num_tokens_ahead: dict[Waiting, int] = {}
        self._num_claimed_tokens = 0
        # Requests that run and have whole blocks of tokens to compute still.
        self._prefilling: list[Request] = []
        # Since when somebody has been held for memory and nobody started.
        self._held_since: float | None = None
        self._is_told = False

    def on_arrival(self, request: Request) -> None:
        """A request enters the queue."""
        self._returns.arrived(self._manager.probe(request), request.session_id, self.clock())

    def on_end(self, request: Request, handle: Node | None) -> None:
        """A request finished; what it leaves in the cache ends with ``handle``."""
        now = self.clock()
        started_at = self._started_at.pop(request.request_id, None)
        if started_at is not None:
            self._mean_residence = _smooth(self._mean_residence, now - started_at)
            self._mean_output = _smooth(self._mean_output, request.num_output_tokens)
        if handle is not None and handle.parent is not None:
            self._returns.left(handle, request.session_id, now)

    def start_step(self, ordered: Iterable[Waiting], pinned: list[Match]) -> None:
        """Tell the tree what is about to be used, and take stock of the rest.

        Args:
            ordered: the waiting requests in their order.
            pinned: what is kept in any case.
        """
        self._prefilling.clear()
        self._num_tokens_ahead.clear()
        waiting = list(islice(ordered, _MAX_WANTED))
        if not waiting and not pinned and not self._is_told:
            return
        self._is_told = bool(waiting or pinned)
        kept = pinned
        if waiting:
            kept = pinned + self._returns.expected(self.clock(), self._mean_residence, _LIKELY)
        claims = [entry.match for entry in waiting if entry.match is not None]
        # The first number is that of no match at all.
        covered = [0]
        covered += self._manager.tree.want(kept + claims)  # type: ignore[operator]
        num_kept_blocks = covered[len(kept)]
        block_size = self._manager.block_size
        ahead = [(num_blocks - num_kept_blocks) * block_size for num_blocks in covered[len(kept) :]]
        self._num_claimed_tokens = ahead[-1]
        num_claims = 0
        for entry in waiting:
            self._num_tokens_ahead[entry] = ahead[num_claims]
            num_claims += entry.match is not None
        if waiting:
            num_free_blocks = self._manager.block_pool.get_num_free_blocks() - num_kept_blocks
            running = self._running()
            growth = sum(map(self._growth, running))
            self._num_free_tokens = num_free_blocks * block_size - growth
            self._prefilling = [
                request
                for request in running
                if request.num_computed_tokens + block_size <= request.num_tokens
            ]

    def is_held(self, waiting: Waiting) -> bool:
        """Whether the request needs more memory than nobody is about to use, or only patience.

        O(requests in prefill).
        """
        num_tokens_ahead = self._num_tokens_ahead.get(waiting, self._num_claimed_tokens)
        num_free_tokens = self._num_free_tokens - num_tokens_ahead
        if num_free_tokens <= 0 or self._need(waiting) > num_free_tokens:
            return not self._is_overdue() and self._is_busy()
        return (
            any(self._manager.is_ahead(one, waiting.request) for one in self._prefilling)
            and self._is_busy()
        )

    def on_admitted(self, waiting: Waiting) -> None:
        """The request runs from now on."""
        self._started_at[waiting.request.request_id] = self.clock()
        if self._manager.is_prefilling(waiting.request):
            self._prefilling.append(waiting.request)
        self._held_since = None
        self._num_free_tokens -= self._need(waiting)

    def _is_overdue(self) -> bool:
        """Whether what others are held for has not come in the time in which it should have."""
        if self._held_since is None:
            self._held_since = self.clock()
        waited = self.clock() - self._held_since
        return 0.0 < self._mean_residence < waited

    def _need(self, waiting: Waiting) -> float:
        """Tokens of memory that the request will take beyond what is cached of it."""
        request = waiting.request
        return request.num_tokens - waiting.num_cached_tokens + self._output_left(request)

    def _growth(self, request: Request) -> float:
        """Tokens of memory that a running request will still take."""
        num_prompt_left = max(request.num_prompt_tokens - request.num_computed_tokens, 0)
        return num_prompt_left + self._output_left(request)

    def _output_left(self, request: Request) -> float:
        expected = min(self._mean_output, request.max_tokens)
        return max(expected - request.num_output_tokens, 0)


def _smooth(mean: float, value: float) -> float:
    return mean + _SMOOTHING * (value - mean) if mean else value
