# SPDX-License-Identifier: Apache-2.0
"""Calls over connections that the server closes."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import openai
import pytest

from vllm_radix.bench.ab.client import Client
from vllm_radix.bench.ab.metrics import Poller
from vllm_radix.bench.ab.workloads.base import Call
from vllm_radix.bench.connections import reason

# Seconds between two requests; vLLM's server closes what was idle for 5.
PAUSE = 1.5
CHUNK = {
    "id": "1",
    "object": "text_completion",
    "created": 0,
    "model": "m",
    "choices": [{"index": 0, "text": " a", "finish_reason": None, "logprobs": None}],
}
BODY = f"data: {json.dumps(CHUNK)}\n\ndata: [DONE]\n\n".encode()
METRICS = b"vllm:kv_cache_usage_perc 0.5\n"


@asynccontextmanager
async def server(patience: float) -> AsyncIterator[str]:
    """The address of a server that hangs up on a request after so many idle seconds.

    It does not say so before, as if its decision and the request had crossed.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ready = time.monotonic()
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                if time.monotonic() > ready + patience:
                    break
                for line in head.lower().splitlines():
                    if line.startswith(b"content-length:"):
                        await reader.readexactly(int(line.split(b":")[1]))
                kind, body = b"text/plain", METRICS
                if head.startswith(b"POST"):
                    kind, body = b"text/event-stream", BODY
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s"
                    % (kind, len(body), body)
                )
                await writer.drain()
                ready = time.monotonic()
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        host, port = listening.sockets[0].getsockname()
        yield f"http://{host}:{port}"


def test_a_pause_costs_no_request() -> None:
    async def ask_twice() -> list[str]:
        async with server(patience=PAUSE) as url:
            client, poller = Client(url, "m", 30), Poller(url)
            texts = []
            for pause in (0, PAUSE + 0.1):
                await asyncio.sleep(pause)
                texts.append((await client.ask(Call("a", 1))).choices[0].text)
                await poller.take()
            assert len(poller.samples) == 2
            await client.close()
            await poller.close()
            return texts

    assert asyncio.run(ask_twice()) == [" a", " a"]


def test_the_cause_is_named() -> None:
    async def fail() -> BaseException:
        async with server(patience=-1) as url:
            client = Client(url, "m", 30)
            with pytest.raises(openai.APIConnectionError) as caught:
                await client.ask(Call("a", 1))
            await client.close()
            return caught.value

    assert reason(asyncio.run(fail())) == (
        "Connection error (RemoteProtocolError: Server disconnected without sending a response)."
    )


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (httpx.ReadError("It broke."), "It broke."),
        (httpx.ReadTimeout(""), "ReadTimeout."),
    ],
)
def test_a_cause_that_there_is_not_is_left_out(error: Exception, expected: str) -> None:
    assert reason(error) == expected


def test_a_cause_without_words_is_named_by_its_kind() -> None:
    error = httpx.ReadError("It broke")
    error.__cause__ = TimeoutError()
    assert reason(error) == "It broke (TimeoutError)."
