# SPDX-License-Identifier: Apache-2.0
"""A radix-tree prefix cache for vLLM.

    vllm serve MODEL --scheduler-cls vllm_radix.Scheduler

Reading order: :mod:`vllm_radix.tree` (the data structure, no vLLM in it), then
:mod:`vllm_radix.cache` (vLLM's block manager on that tree), then
:mod:`vllm_radix.scheduling` (the classes that ``--scheduler-cls`` names).

Importing this package imports neither torch nor vLLM: ``Scheduler`` is resolved on first use,
because vLLM loads every installed plugin in every one of its processes.
"""

from typing import Any

from vllm_radix._version import __version__

__all__ = ["Scheduler", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "Scheduler":
        from vllm_radix.scheduling.scheduler import Scheduler

        return Scheduler
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
