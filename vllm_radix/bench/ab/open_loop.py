# SPDX-License-Identifier: Apache-2.0
"""Open loops, whose requests arrive at a rate of their own, are driven by ``vllm bench serve``."""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
from pydantic import BaseModel, ValidationError

from vllm_radix.bench import server
from vllm_radix.bench.ab.arms import ArmError, Endpoint
from vllm_radix.bench.ab.client import Answer, Choice
from vllm_radix.bench.ab.compare import CallId
from vllm_radix.bench.ab.drive import GRACE, OnAnswer
from vllm_radix.bench.ab.metrics import Poller
from vllm_radix.bench.ab.results import Request, Run
from vllm_radix.bench.ab.workloads.base import Call
from vllm_radix.bench.server import Program, ServerError

_RESERVED = ("--base-url", "--host", "--port", "--save-result", "--result-dir", "--result-filename")
_LOOK_INTERVAL = 0.2


class BenchResult(BaseModel):
    """What we read of the file that ``vllm bench serve --save-detailed`` writes.

    One entry for each request; times in seconds.
    """

    duration: float
    input_lens: list[int]
    output_lens: list[int]
    start_times: list[float]
    ttfts: list[float]
    itls: list[list[float]]
    """Between two chunks of an answer."""
    generated_texts: list[str]
    errors: list[str]
    """Empty for those that did not fail."""


def check_flags(flags: Sequence[str]) -> None:
    """Return if ``vllm bench serve`` may be given these flags.

    Raises:
        ValueError: in one sentence.
    """
    for flag in flags:
        if flag.partition("=")[0] in _RESERVED:
            raise ValueError(f"--open-loop: {flag} is set for each run: leave it out.")


@dataclass(frozen=True)
class OpenLoop:
    """Requests that ``vllm bench serve`` sends.

    Args:
        flags: of ``vllm bench serve``.
        folder: for its results and logs.
    """

    flags: tuple[str, ...]
    folder: Path

    def num_calls(self, seed: int) -> None:
        """It knows best, and tells at the end."""

    def hold(
        self, endpoint: Endpoint, seed: int, run: Run, on_answer: OnAnswer
    ) -> dict[CallId, Answer]:
        """Send all requests, and fill ``run``.

        Raises:
            ServerError: the server or ``vllm bench serve`` failed; with the end of its log.
            ArmError: the server failed a request.
        """
        name = f"bench-{len(list(self.folder.glob('bench-*.log'))) + 1}"
        file = self.folder / f"{name}.json"
        program = _LoadGenerator(self._command(endpoint, seed, file), file.with_suffix(".log"))
        asyncio.run(_watch(program, endpoint, run, on_answer))
        result = _read(file)
        failed = [error for error in result.errors if error]
        if failed:
            endpoint.check(GRACE)
            reason = failed[0].strip().splitlines()[-1]
            raise ArmError(f"{len(failed)} of {len(result.errors)} requests failed: {reason}")
        return _fill(run, result, seed)

    def _command(self, endpoint: Endpoint, seed: int, file: Path) -> list[str]:
        return server.vllm(
            *("bench", "serve", "--temperature", "0", "--seed", str(seed)),
            *self.flags,
            *("--base-url", endpoint.url, "--save-result", "--save-detailed"),
            *("--result-dir", str(file.parent), "--result-filename", file.name),
        )


class _LoadGenerator(Program):
    kind = "load generator"


async def _watch(program: Program, endpoint: Endpoint, run: Run, on_answer: OnAnswer) -> None:
    poller = Poller(endpoint.url)
    run.samples = poller.samples
    with program:
        poll = asyncio.create_task(poller.run())
        try:
            while not program.has_ended():
                if endpoint.server is not None:
                    endpoint.check()
                on_answer(run)
                await asyncio.sleep(_LOOK_INTERVAL)
        except ServerError:
            # A load generator whose server is gone ends badly too, and that is no news.
            endpoint.check(GRACE)
            raise
        finally:
            poll.cancel()
    # What a server has to say that fails just now is in the result.
    with contextlib.suppress(httpx.HTTPError):
        await poller.take()
    await poller.close()


def _read(file: Path) -> BenchResult:
    try:
        return BenchResult.model_validate_json(file.read_text())
    except (OSError, ValidationError) as error:
        reason = str(error).splitlines()[0]
        raise ArmError(f"vllm bench serve left no result that can be read ({reason}).") from None


def _fill(run: Run, result: BenchResult, seed: int) -> dict[CallId, Answer]:
    answers: dict[CallId, Answer] = {}
    first = min(result.start_times)
    for number, ttft in enumerate(result.ttfts):
        tokens, between = result.output_lens[number], sum(result.itls[number])
        session = f"request-{number}"
        run.requests.append(
            Request(
                session=session,
                turn=0,
                start=result.start_times[number] - first,
                ttft=ttft,
                e2e=ttft + between,
                tpot=between / (tokens - 1) if tokens > 1 else None,
                prompt_tokens=result.input_lens[number],
                output_tokens=tokens,
                cached_tokens=None,
            )
        )
        # The file holds no prompts; the same seed and length stand for the same one.
        prompt = f"{seed}, {number}, {result.input_lens[number]}"
        choice = Choice(text=result.generated_texts[number])
        answers[session, 0, 0] = Answer(Call(prompt, tokens), 0.0, [choice])
    run.duration = result.duration
    run.num_calls = len(result.ttfts)
    return answers
