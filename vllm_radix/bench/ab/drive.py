# SPDX-License-Identifier: Apache-2.0
"""Holding all sessions of a workload with one server at once."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import httpx
import openai

from vllm_radix.bench.ab.arms import ArmError, Endpoint
from vllm_radix.bench.ab.client import Answer, Client, ContextTooLongError
from vllm_radix.bench.ab.compare import CallId
from vllm_radix.bench.ab.metrics import Poller
from vllm_radix.bench.ab.results import Request, Run
from vllm_radix.bench.ab.workloads.base import Call, Session, Turn, Workload
from vllm_radix.bench.connections import reason
from vllm_radix.bench.server import ServerError

# A server is lazy: the first requests of all pay for what the others find ready.
_WARM_UP = tuple(Call(f"{word} is a warm day, and", 8) for word in ("Monday", "Tuesday", "Friday"))
# Seconds between two looks whether the server lives.
_WATCH_INTERVAL = 0.5
GRACE = 15.0
"""Seconds that a server gets to die after it failed a request, so that its log tells why."""

OnAnswer = Callable[[Run], None]
"""Called with the run so far after each answer."""


@dataclass(frozen=True)
class Driver:
    """How to ask.

    Args:
        concurrency: sessions held at once.
        timeout: seconds without any sign of the server until a call fails.
        ignore_eos: let all answers have their full length.
        session_ids: tell the server which session each call belongs to.
    """

    concurrency: int
    timeout: float
    ignore_eos: bool
    session_ids: bool

    def hold(
        self, endpoint: Endpoint, sessions: Sequence[Session], run: Run, on_answer: OnAnswer
    ) -> dict[CallId, Answer]:
        """Hold all sessions, and fill ``run`` as far as that goes.

        Raises:
            ServerError: the server died; the message holds the end of its log.
            ArmError: it failed a request.
        """
        hold = _Hold(self, endpoint, run, on_answer)
        try:
            asyncio.run(hold.all(sessions))
        except BaseExceptionGroup as group:
            error = _leaf(group)
            if isinstance(error, (openai.OpenAIError, httpx.HTTPError)):
                # If the server dies, that says more than the client's view of it.
                endpoint.check(GRACE)
                raise ArmError(
                    f"The server at {endpoint.url} failed a request: {reason(error)}"
                ) from group
            raise error from group
        return hold.answers


@dataclass
class ClosedLoop:
    """Sessions of a workload."""

    workload: Workload
    driver: Driver
    _sessions: dict[int, list[Session]] = field(default_factory=dict)

    def num_calls(self, seed: int) -> int:
        """How many calls all sessions of a seed make."""
        return sum(session.num_calls for session in self._of_seed(seed))

    def hold(
        self, endpoint: Endpoint, seed: int, run: Run, on_answer: OnAnswer
    ) -> dict[CallId, Answer]:
        """As :meth:`Driver.hold`, with the sessions of a seed.

        Raises:
            ArmError: also if no call of them is short enough for the model.
        """
        answers = self.driver.hold(endpoint, self._of_seed(seed), run, on_answer)
        if not answers:
            raise ArmError(
                f"No prompt fits into the model's context: {self.workload.how_to_fit()}."
            )
        return answers

    def _of_seed(self, seed: int) -> list[Session]:
        if seed not in self._sessions:
            # One round is over when the next one begins.
            self._sessions = {seed: self.workload.sessions(seed)}
        return self._sessions[seed]


@dataclass
class _Hold:
    driver: Driver
    endpoint: Endpoint
    run: Run
    on_answer: OnAnswer
    answers: dict[CallId, Answer] = field(default_factory=dict)
    started: float = 0.0

    async def all(self, sessions: Sequence[Session]) -> None:
        driver, endpoint = self.driver, self.endpoint
        self.client = Client(endpoint.url, endpoint.model, driver.timeout, driver.ignore_eos)
        self.run.num_sessions = len(sessions)
        self.limit = asyncio.Semaphore(driver.concurrency)
        poller = Poller(endpoint.url)
        self.run.samples = poller.samples
        try:
            async with asyncio.TaskGroup() as group:
                watch = group.create_task(self._watch())
                for call in _WARM_UP:
                    await self.client.ask(call)
                await poller.take()
                encodings = endpoint.count_encodings()
                self.started = time.monotonic()
                poll = group.create_task(poller.run())
                async with asyncio.TaskGroup() as clients:
                    for session in sessions:
                        clients.create_task(self._session(session))
                poll.cancel()
                await poller.take()
                if encodings is not None:
                    self.run.images_encoded = encodings.count()
                watch.cancel()
        finally:
            await self.client.close()
            await poller.close()

    async def _watch(self) -> None:
        """Notice a dead server at once: a request to it may hang as long as the timeout."""
        while self.endpoint.server is not None:
            self.endpoint.check()
            await asyncio.sleep(_WATCH_INTERVAL)

    async def _session(self, session: Session) -> None:
        await asyncio.sleep(session.start)
        async with self.limit:
            turns = session.turns()
            number = 0
            try:
                turn = next(turns)
                while True:
                    await asyncio.sleep(turn.think_time)
                    texts = await self._turn(session, number, turn)
                    number += 1
                    turn = turns.send(texts)
            except StopIteration:
                pass
            except ContextTooLongError:
                self.run.cut_sessions += 1

    async def _turn(self, session: Session, number: int, turn: Turn) -> list[list[str]]:
        tasks = [
            self._call((session.name, number, which), call) for which, call in enumerate(turn.calls)
        ]
        answers = []
        cut = None
        for answer in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(answer, ContextTooLongError):
                cut = answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                answers.append([choice.text for choice in answer.choices])
        if cut is not None:
            raise cut
        return answers

    async def _call(self, call_id: CallId, call: Call) -> Answer:
        session, turn, _ = call_id
        answer = await self.client.ask(call, session if self.driver.session_ids else None)
        self.answers[call_id] = answer
        self.run.requests.append(
            Request(
                session=session,
                turn=turn,
                start=answer.start - self.started,
                ttft=answer.ttft,
                e2e=answer.e2e,
                tpot=answer.tpot,
                prompt_tokens=answer.prompt_tokens,
                output_tokens=answer.output_tokens,
                cached_tokens=answer.cached_tokens,
            )
        )
        self.run.duration = max(self.run.duration, answer.end - self.started)
        self.on_answer(self.run)
        return answer


def _leaf(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What a group of errors is about: a dead server explains all the others."""
    leaves = _leaves(group)
    return next((error for error in leaves if isinstance(error, ServerError)), leaves[0])


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]
