# SPDX-License-Identifier: Apache-2.0
"""A ``vllm serve`` process, or another one, that never outlives the program that started it."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sysconfig
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
from prometheus_client.parser import text_string_to_metric_families

# Seconds from asking a server to end to killing it. vLLM, even while it loads a model, ends within
# a third of that, and a server that is killed leaves its shared memory behind.
_STOP_TIMEOUT = 30
# Runs in the server's process group and reads from this program, which never writes: the read
# ends when this program does, however it ends, and then so does the whole group.
_GUARD = "trap '' INT TERM; cat > /dev/null; kill -INT 0; sleep {timeout}; kill -KILL 0"
_TAIL_LINES = 10
# What each of vLLM's processes sets before its lines.
_PROCESS = re.compile(r"^\(\w+(?: pid=\d+)?\)\s*")
# The line of a log that names an error, except vLLM's last one, which only points further up.
_ERROR = re.compile(r"(?:^|\s)((?:\w+\.)*\w+(?:Error|Exception): (?!.*See root cause above).*)")


class ServerError(RuntimeError):
    """The process did not start, or died; the message holds the end of its log."""


@dataclass(frozen=True)
class PrefixCacheCounts:
    """How many prompt tokens were looked up in the prefix cache, and how many were found."""

    queries: int
    hits: int

    def __sub__(self, earlier: "PrefixCacheCounts") -> "PrefixCacheCounts":
        return PrefixCacheCounts(self.queries - earlier.queries, self.hits - earlier.hits)

    @property
    def hit_rate(self) -> float:
        """Between 0 and 1; 0 when nothing was looked up."""
        return self.hits / self.queries if self.queries else 0.0


def vllm(*arguments: str) -> list[str]:
    """The command ``vllm`` of the running Python environment, with its arguments."""
    return [str(Path(sysconfig.get_path("scripts")) / "vllm"), *arguments]


def vllm_serve(model: str | Path, *options: str) -> list[str]:
    """The command that serves ``model`` with the vLLM of the running Python environment."""
    return vllm("serve", str(model), *options)


class Program:
    """A process and all its children, running for as long as the ``with`` block lasts.

    Args:
        command: what to run.
        log: receives the program's output; overwritten.
        env: environment variables to set on top of this program's.
    """

    kind = "program"
    """What messages call it."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._command = list(command)
        self._env = {**os.environ, **(env or {})}
        self._guard: subprocess.Popen[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.log = log

    def __enter__(self) -> Self:
        """Start the program, without waiting for it.

        Raises:
            OSError: there is no such command.
        """
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def has_ended(self) -> bool:
        """Whether the program has ended, and well.

        Raises:
            ServerError: it failed; the message holds the end of its log.
        """
        code = None if self._process is None else self._process.poll()
        if code:
            raise self._failure(f"ended with exit code {code}")
        return code == 0

    def stop(self) -> None:
        """Ask the program to end, then kill what is left of its process group. May be repeated."""
        try:
            if self._process is not None:
                self._ask_to_end(self._process)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_STOP_TIMEOUT)
        finally:
            # An impatient user's second Ctrl-C comes here too.
            if self._guard is not None:
                # The guard is not reaped yet, so its process id, the group's, is still its own.
                os.killpg(self._guard.pid, signal.SIGKILL)
                self._guard.communicate()
            if self._process is not None:
                self._process.wait()
            self._guard = self._process = None

    def check(self, grace: float = 0.0) -> None:
        """Return if the program is running.

        Args:
            grace: how many seconds to wait whether it ends, for use after a failed request.

        Raises:
            ServerError: it is not running; the message holds the end of its log.
        """
        if self._process is None:
            raise ServerError(f"The {self.kind} was not started: use it in a `with` block.")
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(grace)
            raise self._failure(f"ended by itself with exit code {code}")

    def _start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._guard = subprocess.Popen(
            ("sh", "-c", _GUARD.format(timeout=_STOP_TIMEOUT)),
            stdin=subprocess.PIPE,
            process_group=0,
        )
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._env,
                process_group=self._guard.pid,
            )

    def _ask_to_end(self, process: subprocess.Popen[bytes]) -> None:
        if self._guard is not None:
            os.killpg(self._guard.pid, signal.SIGINT)

    def _failure(self, what: str) -> ServerError:
        lines = self.log.read_text(errors="replace").splitlines()
        cause = _cause(lines)
        sentence = f"The {self.kind} {what}, see {self.log}."
        if cause:
            sentence += f" Its log says: {cause}"
        return ServerError("\n".join((*lines[-_TAIL_LINES:], sentence)))


class Server(Program):
    """One server, running for as long as the ``with`` block lasts.

        with Server(vllm_serve(model), Path("server.log")) as server:
            server.wait_until_ready()
            client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")

    Args:
        command: what to run; ``--host`` and ``--port`` are appended.
        log: receives the server's output; overwritten.
        env: environment variables to set on top of this program's.
        port: where it listens; None for a free one.
    """

    kind = "server"

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        env: Mapping[str, str] | None = None,
        port: int | None = None,
    ) -> None:
        super().__init__(command, log, env=env)
        self._arguments = self._command
        self._port = port
        self._is_ready = False
        self.url = ""
        """The server's address, without a path and without a slash at its end."""

    def wait_until_ready(self, timeout: float = 600.0) -> None:
        """Return as soon as the server answers ``/health``.

        Args:
            timeout: in seconds.

        Raises:
            ServerError: the server ended, or took longer.
        """
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            self.check()
            with contextlib.suppress(httpx.TransportError):
                if self._get("/health").is_success:
                    self._is_ready = True
                    return
            time.sleep(0.2)
        raise self._failure(f"was not ready after {timeout:.0f} s")

    def stop(self) -> None:
        """Ask the server to end, then kill what is left of its process group. May be repeated."""
        super().stop()
        self._is_ready = False

    def metrics(self) -> dict[str, float]:
        """The values at ``/metrics``, each summed over its labels.

        Raises:
            ServerError: the server is not running, or does not answer.
        """
        self.check()
        try:
            return parse_metrics(self._get("/metrics").raise_for_status().text)
        except httpx.HTTPError as error:
            raise self._failure(f"did not give its metrics ({error})") from error

    def prefix_cache_counts(self) -> PrefixCacheCounts:
        """What the server has looked up and found in its prefix cache since it started."""
        metrics = self.metrics()
        return PrefixCacheCounts(
            queries=int(metrics.get("vllm:prefix_cache_queries_total", 0)),
            hits=int(metrics.get("vllm:prefix_cache_hits_total", 0)),
        )

    def _start(self) -> None:
        if self._port is not None:
            require_free_port(self._port)
        port = self._port or free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._command = [*self._arguments, "--host", "127.0.0.1", "--port", str(port)]
        super()._start()

    def _ask_to_end(self, process: subprocess.Popen[bytes]) -> None:
        if self._is_ready:
            # Its own processes are the server's to end, once it has dropped their requests.
            process.terminate()
        else:
            # A server that waits for its engine to start hears no signal; the engine does.
            super()._ask_to_end(process)

    def _get(self, path: str) -> httpx.Response:
        # A proxy named in the environment is not meant for this machine's own address.
        return httpx.get(f"{self.url}{path}", trust_env=False)


def _cause(lines: Sequence[str]) -> str:
    """The error that a log ends with, in one line; empty if it names none."""
    for number in range(len(lines) - 1, -1, -1):
        found = _ERROR.search(lines[number])
        if found is None:
            continue
        # Pydantic's says in the next line what is wrong, and then repeats the whole input.
        if " validation error" in found[1] and number + 1 < len(lines):
            detail = _PROCESS.sub("", lines[number + 1]).strip()
            return f"{found[1]} {detail.partition(' [type=')[0]}"
        return found[1]
    return ""


def parse_samples(text: str) -> dict[str, list[float]]:
    """The values in Prometheus's text format by name, one for each set of labels."""
    samples: dict[str, list[float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append(sample.value)
    return samples


def parse_metrics(text: str) -> dict[str, float]:
    """The values in Prometheus's text format by name, each summed over its labels."""
    return {name: sum(values) for name, values in parse_samples(text).items()}


def require_free_port(port: int) -> None:
    """Return if nobody listens on the port at 127.0.0.1.

    Raises:
        ServerError: somebody does.
    """
    with socket.socket() as probe:
        # As servers do: the remains of closed connections are in nobody's way.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise ServerError(
                f"Port {port} cannot be used ({error.strerror}): name another one, or none for "
                "a free one."
            ) from None


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
