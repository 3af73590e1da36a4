# SPDX-License-Identifier: Apache-2.0
"""Timing that other processes on the machine disturb little."""

import gc
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Protocol, TypeVar

from vllm.utils.gc_utils import freeze_gc_heap

T = TypeVar("T")
# The first rounds meet cold caches and one-time work.
_WARM_UP_ROUNDS = 2


class Named(Protocol):
    """Anything with a name to file its times under."""

    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=Named)


def timed(call: Callable[[], T]) -> tuple[float, T]:
    """CPU seconds of this thread that ``call`` took, and what it returned.

    CPU time rather than time on the clock: nothing measured here waits, so the two differ only by
    what other processes take away.
    """
    start = time.thread_time_ns()
    result = call()
    return (time.thread_time_ns() - start) / 1e9, result


def interleaved(
    contenders: Sequence[N], rounds: int, measure: Callable[[N, int], Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    """Medians over ``rounds`` rounds in which the contenders take turns, a different one first.

    Args:
        contenders: who is measured.
        rounds: how often each is, not counting the warm-up.
        measure: given a contender and the number of the round, does the work and returns
            seconds by figure.

    Returns:
        Median seconds by figure and name of the contender.
    """
    times: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with quiet_gc():
        for round_ in range(rounds + _WARM_UP_ROUNDS):
            shift = round_ % len(contenders)
            for contender in (*contenders[shift:], *contenders[:shift]):
                for figure, seconds in measure(contender, round_).items():
                    if round_ >= _WARM_UP_ROUNDS:
                        times[figure][contender.name].append(seconds)
            gc.collect(0)
    return {
        figure: {name: median(values) for name, values in by_name.items()}
        for figure, by_name in times.items()
    }


@contextmanager
def quiet_gc() -> Iterator[None]:
    """Freeze the heap, as the engine core does at its start, and collect nothing.

    A collection that one side's garbage brings about could otherwise fall into the time of
    the other.
    """
    freeze_gc_heap()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
