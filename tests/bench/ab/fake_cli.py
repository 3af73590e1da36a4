# SPDX-License-Identifier: Apache-2.0
"""``vllm-radix`` with ``fake_vllm.py`` in place of ``vllm``."""

import sys
from pathlib import Path

from vllm_radix.bench import server
from vllm_radix.bench.ab import drive, open_loop
from vllm_radix.cli import app

FAKE = Path(__file__).with_name("fake_vllm.py")


def vllm(*arguments: str) -> list[str]:
    return [sys.executable, str(FAKE), *arguments]


if __name__ == "__main__":
    server.vllm = vllm
    server._STOP_TIMEOUT = 2
    drive.GRACE = open_loop.GRACE = 2
    app()
