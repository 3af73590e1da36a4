# SPDX-License-Identifier: Apache-2.0
"""Asynchronous scheduling on the CPU.

vLLM's CPU platform turns it off, because nothing there would overlap, and its model runner reads
the sampled tokens through a CUDA stream. What matters to a scheduler is there all the same: it
plans a step before it knows the tokens of the last. So the platform's verdict is overruled here,
and streams and events are stand-ins that have nothing to wait for.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from vllm.platforms.cpu import CpuPlatform


class _Nothing:
    """A stream or an event whose work is always done."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.device = torch.device("cpu")

    def record(self, *args: Any) -> None: ...
    def synchronize(self) -> None: ...
    def wait_stream(self, stream: Any) -> None: ...


@contextmanager
def asynchronous_cpu() -> Iterator[None]:
    """Meanwhile, engines built with `async_scheduling=True` have it, and can be stepped."""
    check = CpuPlatform.check_and_update_config

    def keep_async_scheduling(cls: type[CpuPlatform], vllm_config: Any) -> None:
        wanted = vllm_config.scheduler_config.async_scheduling
        check(vllm_config)
        vllm_config.scheduler_config.async_scheduling = wanted

    with (
        patch.object(CpuPlatform, "check_and_update_config", classmethod(keep_async_scheduling)),
        patch.multiple(
            torch.cuda,
            Event=_Nothing,
            Stream=_Nothing,
            current_stream=lambda *args: _Nothing(),
            stream=lambda stream: nullcontext(),
        ),
    ):
        yield
