# SPDX-License-Identifier: Apache-2.0
"""How a command that starts servers is stopped."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end a run as Ctrl-C does, results and all.

    Ctrl-C is heard again, too: a shell starts what runs in a script's background deaf to it.
    """

    def interrupt(_: int, __: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    handlers = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: interrupt,
        signal.SIGHUP: interrupt,
    }
    before = {kind: signal.signal(kind, handler) for kind, handler in handlers.items()}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
