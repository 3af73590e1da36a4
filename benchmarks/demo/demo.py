# SPDX-License-Identifier: Apache-2.0
"""Drive every server through the same dialogues and print what each of them took."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from statistics import median

import openai
from rich.console import Console
from rich.table import Table

from benchmarks.demo.dialogues import AGENTS, TURNS, Agent, Message
from benchmarks.demo.servers import ARMS, MODEL_NAME, Arm, server
from vllm_radix.bench.server import PrefixCacheCounts, Server, ServerError

ANSWER_TOKENS = 32
REQUEST_TIMEOUT = 120.0

console = Console()


@dataclass(frozen=True)
class Answer:
    """What the model said at one turn; ``ttft`` is the time to its first token in seconds."""

    agent: str
    text: str
    tokens: int
    ttft: float


@dataclass(frozen=True)
class Result:
    """What one arm did.

    Attributes:
        arm: which one.
        turns: its answers, a list for each turn.
        counts: what its prefix cache had been asked before the first turn and after each.
    """

    arm: Arm
    turns: list[list[Answer]]
    counts: list[PrefixCacheCounts]

    @property
    def cache(self) -> PrefixCacheCounts:
        """What the prefix cache was asked in all turns together."""
        return self.counts[-1] - self.counts[0]


def main() -> int:
    """Run the demo.

    Returns:
        The exit code: 0; 1 if the arms' texts differ or a server fails; 130 when interrupted.
    """
    started = time.monotonic()
    try:
        results = [measure(arm) for arm in ARMS]
    except (ServerError, openai.OpenAIError, OSError) as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        console.print("interrupted")
        return 130
    differences = find_differences(results)
    console.print(table(results, differences))
    for line in differences.values():
        say(line)
    console.print(f"{time.monotonic() - started:.0f} s in all")
    return 1 if differences else 0


def say(text: str) -> None:
    """Print a text that may hold brackets and long lines as it is."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def measure(arm: Arm) -> Result:
    """Start the arm's server, hold all dialogues with it, and stop it.

    Raises:
        ServerError: the server does not start, or dies.
    """
    started = time.monotonic()
    with server(arm) as running:
        try:
            with console.status(f"{arm.name}: vllm serve is starting"):
                running.wait_until_ready()
            console.print(f"{arm.name}: server ready after {time.monotonic() - started:.0f} s")
            return converse(arm, running)
        except openai.OpenAIError:
            # If the server dies, that says more than the client's view of it.
            running.check(grace=10)
            raise
        except KeyboardInterrupt:
            console.print("stopping the server ...")
            raise


def converse(arm: Arm, running: Server) -> Result:
    """Let the agents take turns, one request at a time, so that nobody waits for another."""
    client = openai.OpenAI(
        base_url=f"{running.url}/v1",
        api_key="none",
        timeout=REQUEST_TIMEOUT,
        max_retries=0,
        http_client=openai.DefaultHttpxClient(trust_env=False),
    )
    # The first request of all pays for the server's lazy start.
    ask(client, "warm-up", [{"role": "user", "content": "Hello"}], ())
    counts = [running.prefix_cache_counts()]
    histories = {agent.name: [_system(agent)] for agent in AGENTS}
    turns = []
    for turn in range(TURNS):
        answers = []
        for agent in AGENTS:
            history = histories[agent.name]
            history.append(agent.turns[turn])
            label = f"{arm.name}: turn {turn + 1} of {TURNS}, {agent.name}"
            with console.status(label):
                answer = ask(client, agent.name, history, agent.tools)
            history.append({"role": "assistant", "content": answer.text})
            answers.append(answer)
        turns.append(answers)
        counts.append(running.prefix_cache_counts())
        ttft = 1000 * median(answer.ttft for answer in answers)
        console.print(f"{arm.name}: turn {turn + 1} of {TURNS}, first token after {ttft:.0f} ms")
    return Result(arm, turns, counts)


def ask(
    client: openai.OpenAI, name: str, messages: list[Message], tools: tuple[Message, ...]
) -> Answer:
    """Stream one answer, greedily decoded."""
    started = time.monotonic()
    stream = client.chat.completions.create(
        model=MODEL_NAME,
        messages=messages,
        tools=tools or openai.omit,
        # The schemas are part of the prompt; the script, not the model, says what tools return.
        tool_choice="none" if tools else openai.omit,
        max_tokens=ANSWER_TOKENS,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    ttft = None
    pieces = []
    tokens = 0
    for chunk in stream:
        if chunk.usage is not None:
            tokens = chunk.usage.completion_tokens
        for choice in chunk.choices:
            if choice.delta.content:
                pieces.append(choice.delta.content)
                ttft = ttft or time.monotonic() - started
    # An empty answer has no first token; its end is the first sign of it.
    return Answer(name, "".join(pieces), tokens, ttft or time.monotonic() - started)


def find_differences(results: list[Result]) -> dict[str, str]:
    """For each arm whose texts are not the first arm's: where they part, in words."""
    first, *others = results
    differences = {}
    for other in others:
        for turn, pair in enumerate(zip(first.turns, other.turns, strict=True), start=1):
            for expected, got in zip(*pair, strict=True):
                if expected.text != got.text and other.arm.name not in differences:
                    differences[other.arm.name] = (
                        f"turn {turn}, {got.agent}:\n"
                        f"  {first.arm.name}: {expected.text!r}\n"
                        f"  {other.arm.name}: {got.text!r}"
                    )
    return differences


def table(results: list[Result], differences: dict[str, str]) -> Table:
    """Everything in one view, a column for each arm; times are medians over the agents."""
    out = Table(title=f"{MODEL_NAME}: {len(AGENTS)} agents, {TURNS} turns each")
    out.add_column()
    for result in results:
        out.add_column(result.arm.name, justify="right")
    times = [[[answer.ttft for answer in turn] for turn in result.turns] for result in results]
    for turn in range(TURNS):
        label = f"time to first token, turn {turn + 1}"
        out.add_row(label, *(_milliseconds(arm[turn]) for arm in times))
    out.add_row(
        "all turns", *(_milliseconds(chain.from_iterable(arm)) for arm in times), end_section=True
    )
    out.add_row("hit rate of the prefix cache", *(f"{r.cache.hit_rate:.1%}" for r in results))
    out.add_row(
        "tokens generated",
        *(str(sum(answer.tokens for turn in r.turns for answer in turn)) for r in results),
    )
    texts = ["differ" if r.arm.name in differences else "the same" for r in results[1:]]
    out.add_row("texts", "reference", *texts)
    return out


def _milliseconds(seconds: Iterable[float]) -> str:
    return f"{1000 * median(seconds):.0f} ms"


def _system(agent: Agent) -> Message:
    return {"role": "system", "content": agent.system}
