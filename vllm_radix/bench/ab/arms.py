# SPDX-License-Identifier: Apache-2.0
"""What is compared: servers that are started here, or that are running already."""

import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from vllm_radix.bench.ab import encodings
from vllm_radix.bench.connections import KEPT_LONG
from vllm_radix.bench.folders import check_named
from vllm_radix.bench.server import Server, ServerError, vllm_serve

BUILT_IN: dict[str, tuple[str, ...]] = {
    "no-cache": ("--no-enable-prefix-caching",),
    "stock": ("--enable-prefix-caching",),
    "radix": ("--enable-prefix-caching", "--scheduler-cls", "vllm_radix.Scheduler"),
}
"""What each arm adds to the flags that all share."""
# Usage tells how much of a prompt was cached; a log without access lines ends with what matters.
_ALWAYS = ("--enable-prompt-tokens-details", "--disable-uvicorn-access-log")
# Seconds that requests of an earlier run get to leave a running server.
_RESET_TIMEOUT = 10
# What makes the arms differ, and where they listen, is not for all of them alike.
_RESERVED = {
    "--enable-prefix-caching": "is what the arms differ in",
    "--no-enable-prefix-caching": "is what the arms differ in",
    "--scheduler-cls": "is what the arms differ in",
    "--host": "is set for each server",
    "--port": "is an option of its own, before the --",
    "--uds": "is not supported",
}


class ArmError(RuntimeError):
    """A server that cannot be used, in one sentence."""


@dataclass(frozen=True)
class Arm:
    """One side of the comparison: flags of a server to start, or the address of a running one."""

    name: str
    options: tuple[str, ...] = ()
    url: str | None = None


@dataclass(frozen=True)
class Endpoint:
    """A server that is ready, for one run."""

    url: str
    """Without a path and without a slash at its end."""
    model: str
    """The name that it serves the model by."""
    version: str
    """Of its vLLM; "unknown" if it doesn't tell."""
    cache: str
    """How its cache came to be empty, or that it was not, in words."""
    server: Server | None = None
    """If it was started here."""
    logs_encodings: bool = False
    """Whether its log says how many images are encoded."""

    def count_encodings(self) -> encodings.EncodingCounter | None:
        """Counts the images that are encoded from now on; None if nothing tells."""
        if self.server is None or not self.logs_encodings:
            return None
        return encodings.EncodingCounter(self.server.log)

    def check(self, grace: float = 0.0) -> None:
        """Return if the server is running.

        Args:
            grace: how many seconds to wait whether it ends, for use after a failed request.

        Raises:
            ServerError: it is not; the message holds the end of its log, if it was started here.
        """
        if self.server is not None:
            self.server.check(grace)
            return
        try:
            _get(self.url, "/health").raise_for_status()
        except httpx.HTTPError as error:
            raise ServerError(f"The server at {self.url} stopped answering ({error}).") from None


def parse_arm(text: str) -> Arm:
    """The arm that a user named: ``no-cache``, ``stock``, ``radix``, ``NAME=URL``, ``NAME=FLAGS``.

    Raises:
        ValueError: in one sentence.
    """
    name, equals, value = text.partition("=")
    if not equals:
        if name not in BUILT_IN:
            raise ValueError(
                f"There is no arm {name!r}: give {', '.join(BUILT_IN)}, NAME=URL for a running "
                "server or NAME='FLAGS' for one with flags of its own."
            )
        return Arm(name, BUILT_IN[name])
    if not name:
        raise ValueError(f"--arm {text!r} has no name before the equals sign.")
    if value.startswith(("http://", "https://")):
        return Arm(name, url=value.rstrip("/").removesuffix("/v1"))
    if value.startswith("-"):
        return Arm(name, tuple(shlex.split(value)))
    raise ValueError(
        f"--arm {text!r}: give an address that begins with http:// or https://, or flags that "
        "begin with --."
    )


def check_serve_arguments(arms: Sequence[Arm], arguments: Sequence[str]) -> None:
    """Return if ``MODEL FLAGS...`` can be served by all arms that want a server.

    Raises:
        ValueError: in one sentence.
    """
    starts = [arm.name for arm in arms if arm.url is None]
    if not starts:
        if arguments:
            raise ValueError("All arms are running servers: leave out what follows the --.")
        return
    if not arguments or arguments[0].startswith("-"):
        raise ValueError(
            f"Name the model that {', '.join(starts)} shall serve, with its flags, after --: "
            "vllm-radix ab --workload agents -- MODEL --max-model-len 8192."
        )
    for argument in arguments[1:]:
        flag = argument.partition("=")[0].replace("_", "-")
        if flag in _RESERVED:
            raise ValueError(f"{flag} {_RESERVED[flag]}: leave it out of the flags after the --.")
    check_named("model", arguments[0])


def check_running(arms: Sequence[Arm]) -> None:
    """Return if every arm that is a running server answers.

    Raises:
        ArmError: one does not.
    """
    for arm in arms:
        if arm.url is not None:
            _model_at(arm, arm.url)


@dataclass(frozen=True)
class Stage:
    """Where servers are started."""

    arguments: tuple[str, ...]
    """``MODEL FLAGS...``, shared by all arms."""
    logs: Path
    port: int | None
    start_timeout: float
    """Seconds until a server must be ready."""
    images: bool = False
    """Whether servers are asked about images, so that it matters how many are encoded."""

    def command(self, arm: Arm) -> list[str]:
        """What is run for an arm, but for its address."""
        model, *flags = self.arguments
        always = (*_ALWAYS, encodings.FLAG) if self.images else _ALWAYS
        return vllm_serve(model, *flags, *always, *arm.options)

    def describe(self, arm: Arm) -> str:
        """The arm in words that say how to make it again."""
        if arm.url is not None:
            return arm.url
        return shlex.join(["vllm", *self.command(arm)[1:]])

    @contextmanager
    def serve(self, arm: Arm, round_number: int) -> Iterator[Endpoint]:
        """A server of the arm with an empty cache, if that can be had.

        Raises:
            ServerError: it does not start; the message holds the end of its log.
            ArmError: it is of no use.
        """
        if arm.url is not None:
            model = _model_at(arm, arm.url)
            yield Endpoint(arm.url, model, _version_at(arm.url), _reset_cache(arm.url))
            return
        log = self.logs / f"{_file_name(arm.name)}-{round_number}.log"
        env = KEPT_LONG | (encodings.environment() if self.images else {})
        with Server(self.command(arm), log, env=env, port=self.port) as server:
            server.wait_until_ready(self.start_timeout)
            model, version = _model_at(arm, server.url), _version_at(server.url)
            yield Endpoint(server.url, model, version, "fresh server", server, self.images)


def _model_at(arm: Arm, url: str) -> str:
    try:
        response = _get(url, "/v1/models").raise_for_status()
        name: Any = response.json()["data"][0]["id"]
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError, TypeError) as error:
        # A status that says no has a second line, with a link.
        why = (str(error) or type(error).__name__).splitlines()[0]
        raise ArmError(
            f"{arm.name}: no OpenAI-compatible server answers at {url} ({why}): start it, or "
            "correct its address."
        ) from None
    return str(name)


def _version_at(url: str) -> str:
    try:
        return str(_get(url, "/version").raise_for_status().json()["version"])
    except (httpx.HTTPError, ValueError, LookupError, TypeError):
        return "unknown"


def _reset_cache(url: str) -> str:
    deadline = time.monotonic() + _RESET_TIMEOUT
    while True:
        try:
            response = httpx.post(f"{url}/reset_prefix_cache", trust_env=False, timeout=60)
            if not response.is_success:
                return "kept, as the server was started without VLLM_SERVER_DEV_MODE=1"
            if response.json().get("success", True):
                return "reset"
        except (httpx.HTTPError, ValueError, AttributeError):
            return "kept, as the server does not let it be reset"
        if time.monotonic() > deadline:
            return "kept, as requests of somebody else use it"
        time.sleep(1)


def _get(url: str, path: str) -> httpx.Response:
    # A proxy named in the environment is not meant for these.
    return httpx.get(f"{url}{path}", trust_env=False, timeout=30)


def _file_name(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name)
