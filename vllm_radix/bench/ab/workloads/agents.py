# SPDX-License-Identifier: Apache-2.0
"""Agents that share system prompts with tool schemas, and are fed the results of their tools."""

import json
from random import Random
from typing import ClassVar

from vllm_radix.bench.ab.workloads.base import (
    Message,
    Session,
    Workload,
    dialogue,
    draw,
    system,
    think_times,
    user,
)
from vllm_radix.bench.ab.workloads.prose import PEOPLE, PLACES, THINGS, prose, rules, sentence
from vllm_radix.bench.quantities import Count, Range, Seconds

_VERBS = ("read", "list", "find", "compare", "update", "reserve", "cancel", "count", "send", "open")
_NOUNS = (
    "orders", "visitors", "invoices", "rooms", "trains", "alerts", "tickets", "parcels",
    "readings", "contracts", "repairs", "shifts",
)  # fmt: skip
_FIELDS = {
    "name": "Whose it is, in full.",
    "place": "Where it is kept, as the last list gives it.",
    "day": "The day, as year-month-day.",
    "limit": "How many at most, as a whole number.",
    "reason": "One sentence for the record.",
}


class Agents(Workload):
    """Each session is one agent at work: a task, then one tool result a turn."""

    name: ClassVar[str] = "agents"
    about: ClassVar[str] = "agents in a few roles: shared system prompts, tool results fed back"
    lengthens: ClassVar[tuple[str, ...]] = (
        "turns",
        "system_words",
        "tools",
        "message_words",
        "answer_tokens",
    )
    num_sessions: Count = 100
    turns: Count = 5
    system_prompts: Count = 10
    system_words: Count = 1000
    """Words of rules; the schemas of the tools come on top."""
    tools: Count = 6
    message_words: Range = (80, 250)
    """Words of a task or of a tool's result."""
    answer_tokens: Count = 128
    think_time: Seconds = 1.0
    """Mean time that a tool takes, exponentially distributed, in seconds."""
    start_within: Seconds = 2.0
    """Sessions begin uniformly within so many seconds."""

    def sessions(self, seed: int) -> list[Session]:
        rng = Random(seed)
        roles = [_role(rng, number, self) for number in range(self.system_prompts)]
        order = [number % self.system_prompts for number in range(self.num_sessions)]
        rng.shuffle(order)
        return [
            _session(f"agent-{number}", roles[which], rng.random() * self.start_within, self, rng)
            for number, which in enumerate(order)
        ]


def _session(name: str, role: Message, start: float, settings: Agents, rng: Random) -> Session:
    # All that others say is drawn now, so that it does not depend on who answers first.
    messages = [_task(rng, draw(rng, settings.message_words))]
    messages += [_result(rng, draw(rng, settings.message_words)) for _ in range(settings.turns - 1)]
    waits = think_times(rng, settings.think_time, settings.turns)
    turns = dialogue(role, messages, waits, settings.answer_tokens)
    return Session(name, start, settings.turns, turns)


def _role(rng: Random, number: int, settings: Agents) -> Message:
    person, place = rng.choice(PEOPLE), rng.choice(PLACES)
    # As text rather than as the API's `tools`, which some chat templates leave out of the prompt.
    schemas = "\n".join(json.dumps(_schema(rng)) for _ in range(settings.tools))
    return system(
        f"You are assistant number {number} of {person}, who keeps the books of {place}. You work "
        "in small steps. At each step, say in a few sentences what you know and what you will do "
        "next, then call one tool.\n\n"
        f"The rules of the house:\n{rules(rng, settings.system_words)}\n\n"
        f"Your tools, one JSON schema a line:\n{schemas}"
    )


def _schema(rng: Random) -> dict[str, object]:
    fields = rng.sample(sorted(_FIELDS), 3)
    return {
        "name": _tool_name(rng),
        "description": f"For example: {sentence(rng)}",
        "parameters": {
            "type": "object",
            "properties": {
                field: {"type": "string", "description": _FIELDS[field]} for field in fields
            },
            "required": fields,
        },
    }


def _tool_name(rng: Random) -> str:
    return f"{rng.choice(_VERBS)}_{rng.choice(_NOUNS)}"


def _task(rng: Random, words: int) -> Message:
    thing = rng.choice(THINGS)
    return user(f"This is what happened.\n{prose(rng, words)}\nFind out who has {thing} now.")


def _result(rng: Random, words: int) -> Message:
    rows = []
    count = 0
    while count < words:
        note = sentence(rng)
        rows.append({"number": rng.randint(100, 999), "who": rng.choice(PEOPLE), "note": note})
        count += len(note.split()) + 4
    return user(f"<tool_result>\n{json.dumps({_tool_name(rng): rows})}\n</tool_result>")
