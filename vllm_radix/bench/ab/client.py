# SPDX-License-Identifier: Apache-2.0
"""One call to an OpenAI-compatible server, streamed and timed."""

import hashlib
import json
import time
from dataclasses import dataclass, field
from typing import Any

import openai

from vllm_radix.bench.ab.workloads.base import Call
from vllm_radix.bench.connections import KEEP_IDLE

TOP_LOGPROBS = 2
"""Asked for at each position: answers part where the two most likely tokens are nearly tied."""
_TOKEN = "token_id:"
_DEFAULTS = openai.DEFAULT_CONNECTION_LIMITS
# By their own type: it is httpx's in some versions of openai, and httpx2's in others.
_LIMITS = type(_DEFAULTS)(
    max_connections=_DEFAULTS.max_connections,
    max_keepalive_connections=_DEFAULTS.max_keepalive_connections,
    keepalive_expiry=KEEP_IDLE,
)
# What vLLM says of a prompt that is too long, and of one that leaves no room for an answer.
_TOO_LONG = ("context length", "max_tokens must be at least 1")


class ContextTooLongError(Exception):
    """The prompt and its answer do not fit into the model's context."""


@dataclass
class Choice:
    """One answer. ``logprobs`` and ``alternatives`` have one entry for each of ``tokens``."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    """Empty if the server gives no token ids."""
    logprobs: list[float] = field(default_factory=list)
    """Natural logarithms."""
    alternatives: list[dict[int, float]] = field(default_factory=list)
    """The most likely tokens with their logprobs."""
    first: float | None = None
    """Time of the first token, by the clock of ``time.monotonic``."""
    last: float | None = None


@dataclass
class Answer:
    """What came back from a call. Times are by the clock of ``time.monotonic``."""

    call: Call
    start: float
    choices: list[Choice]
    end: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int | None = None

    @property
    def ttft(self) -> float:
        """Seconds to the first token; an answer without any is known to be empty at its end."""
        return min((one.first for one in self.choices if one.first), default=self.end) - self.start

    @property
    def e2e(self) -> float:
        """Seconds to the end."""
        return self.end - self.start

    @property
    def tpot(self) -> float | None:
        """Seconds between two tokens of an answer; None if no answer has two."""
        spans = [
            (one.last - one.first, len(one.tokens) - 1)
            for one in self.choices
            if one.first is not None and one.last is not None and len(one.tokens) > 1
        ]
        gaps = sum(gaps for _, gaps in spans)
        return sum(seconds for seconds, _ in spans) / gaps if gaps else None

    def prompt_key(self) -> bytes:
        """Equal for equal prompts."""
        content = json.dumps(self.call.content, sort_keys=True)
        return hashlib.blake2b(content.encode()).digest()


class Client:
    """Calls one server's model, many at once.

    Args:
        url: the server's address, without ``/v1``.
        model: the name it serves the model by.
        timeout: seconds without any sign of the server until a call fails.
        ignore_eos: let all answers have their full length.
    """

    def __init__(self, url: str, model: str, timeout: float, ignore_eos: bool = False) -> None:
        self._model = model
        # Token ids tell answers apart that look the same, and work for tokens without a text.
        self._extra: dict[str, Any] = {"return_token_ids": True, "return_tokens_as_token_ids": True}
        if ignore_eos:
            self._extra["ignore_eos"] = True
        self._openai = openai.AsyncOpenAI(
            base_url=f"{url}/v1",
            api_key="none",
            timeout=timeout,
            # A second try would hide the time of the first.
            max_retries=0,
            http_client=openai.DefaultAsyncHttpxClient(trust_env=False, limits=_LIMITS),
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._openai.close()

    async def ask(self, call: Call, session_id: str | None = None) -> Answer:
        """Stream the answers to a call.

        Args:
            session_id: tells the server which calls belong together; None tells it nothing.

        Raises:
            ContextTooLongError: the server refuses it for its length.
            openai.OpenAIError: it fails.
        """
        answer = Answer(call, time.monotonic(), [Choice() for _ in range(call.n)])
        try:
            async for chunk in await self._stream(call, session_id):
                now = time.monotonic()
                if chunk.usage is not None:
                    _read_usage(answer, chunk.usage)
                for part in chunk.choices:
                    _read_part(answer.choices[part.index], part, now)
        except openai.BadRequestError as error:
            if any(text in str(error) for text in _TOO_LONG):
                raise ContextTooLongError from error
            raise
        answer.end = time.monotonic()
        return answer

    async def _stream(self, call: Call, session_id: str | None) -> Any:
        extra = self._extra if session_id is None else {**self._extra, "session_id": session_id}
        shared: dict[str, Any] = {
            "model": self._model,
            "max_tokens": call.max_tokens,
            "n": call.n,
            "temperature": call.temperature,
            "seed": openai.omit if call.seed is None else call.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
            "extra_body": extra,
        }
        if isinstance(call.content, str):
            return await self._openai.completions.create(
                prompt=call.content, logprobs=TOP_LOGPROBS, **shared
            )
        messages: Any = call.content
        return await self._openai.chat.completions.create(
            messages=messages, logprobs=True, top_logprobs=TOP_LOGPROBS, **shared
        )


def _read_usage(answer: Answer, usage: Any) -> None:
    answer.prompt_tokens = usage.prompt_tokens
    answer.output_tokens = usage.completion_tokens or 0
    if usage.prompt_tokens_details is not None:
        answer.cached_tokens = usage.prompt_tokens_details.cached_tokens


def _read_part(choice: Choice, part: Any, now: float) -> None:
    """Add what a streamed chunk says about one answer."""
    if hasattr(part, "delta"):
        text = part.delta.content or ""
        entries = (part.logprobs.content or []) if part.logprobs else []
        pairs = [(entry.token, entry.logprob) for entry in entries]
        tops = [[(top.token, top.logprob) for top in entry.top_logprobs] for entry in entries]
    else:
        text = part.text
        logprobs = part.logprobs
        pairs = list(zip(logprobs.tokens, logprobs.token_logprobs, strict=True)) if logprobs else []
        tops = [list(top.items()) for top in logprobs.top_logprobs] if logprobs else []
    tokens = getattr(part, "token_ids", None) or []
    if not (text or tokens or pairs):
        return
    choice.first = choice.first or now
    choice.last = now
    choice.text += text
    choice.tokens += tokens
    choice.logprobs += [logprob for _, logprob in pairs]
    choice.alternatives += [
        {int(name.removeprefix(_TOKEN)): logprob for name, logprob in top if _is_token(name)}
        for top in tops
    ]


def _is_token(name: str) -> bool:
    return name.startswith(_TOKEN)
