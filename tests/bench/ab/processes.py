# SPDX-License-Identifier: Apache-2.0
"""Running ``vllm-radix ab`` in a process, and finding what it leaves behind."""

import os
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
_MARK = "AB_TEST_MARK"


@dataclass
class Command:
    """A command whose descendants can all be told by a mark in their environment."""

    process: subprocess.Popen[str]
    mark: str

    def left(self) -> list[int]:
        """The process ids of its descendants that are running."""
        found = []
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit() or int(folder.name) == self.process.pid:
                continue
            try:
                environment = (folder / "environ").read_bytes()
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            # A killed process whose new parent has not collected it yet is a zombie, state Z.
            if f"{_MARK}={self.mark}".encode() in environment and state != "Z":
                found.append(int(folder.name))
        return found

    def wait_for_line(self, text: str) -> None:
        """Read its output up to a line that contains the text."""
        assert self.process.stdout is not None
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if text in line:
                return
        raise AssertionError("".join(lines))

    def finish(self, timeout: float = 60) -> tuple[int, str]:
        """Its exit status and the rest of its output, once nothing of it is left."""
        output, _ = self.process.communicate(timeout=timeout)
        wait_until(lambda: not self.left(), 10)
        return self.process.returncode, output


@contextmanager
def command(arguments: list[str], **environment: str) -> Iterator[Command]:
    """Run a command; kill what is left of it at the end."""
    mark = uuid.uuid4().hex
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    process = subprocess.Popen(
        arguments,
        env={**os.environ, "PYTHONPATH": path, **environment, _MARK: mark},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    started = Command(process, mark)
    try:
        yield started
    finally:
        process.kill()
        for pid in started.left():
            os.kill(pid, 9)
        process.communicate()


def wait_until(condition: Callable[[], bool], timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
