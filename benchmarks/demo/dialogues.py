# SPDX-License-Identifier: Apache-2.0
"""Six scripted agents in two roles: what the model is told, turn by turn.

Agents of one role share the system prompt and the tool schemas. What users say and tools return
is fixed; the model's own answers come between, so a prompt grows from turn to turn as it does
for a real agent.
"""

import json
from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]


@dataclass(frozen=True)
class Agent:
    """One dialogue: the messages it begins with, its tools, and what arrives at each turn."""

    name: str
    system: str
    tools: tuple[dict[str, Any], ...]
    turns: tuple[Message, ...]


def _tool(name: str, description: str, **parameters: str) -> dict[str, Any]:
    """A function's schema in OpenAI's format; all its parameters are required strings."""
    properties = {key: {"type": "string", "description": text} for key, text in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    function = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": function}


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _result(**content: Any) -> Message:
    return {"role": "tool", "tool_call_id": "call", "content": json.dumps(content)}


OPERATOR = """\
You are the operator on duty for a web shop. Alerts reach you one at a time, each about one service.
Your task is to find the cause and to bring the service back, with as little risk as possible.

Work in small steps. Before each step, say in one sentence what you expect to see. Call one tool at
a time and wait for its result. Read the numbers: a rate is in requests per second, a latency in
milliseconds, a share between 0 and 1. If a number contradicts what you expected, say so and think
again. Never restart a database. Never roll back two services at once. If customers can lose money,
page the owner first and go on only after that. When the service is healthy again, write a summary
of at most three sentences: what customers saw, what the cause was, and what will prevent it."""

OPERATOR_TOOLS = (
    _tool(
        "read_metrics",
        "Rates, latencies and error shares of one service over the last minutes.",
        service="The service's name, as in the alert.",
        minutes="How far back to look, as a whole number.",
    ),
    _tool(
        "search_logs",
        "The latest log lines of one service that contain a text.",
        service="The service's name, as in the alert.",
        text="What the lines must contain; upper and lower case are the same.",
    ),
    _tool(
        "list_deployments",
        "The last deployments of one service, newest first, with author and time.",
        service="The service's name, as in the alert.",
    ),
    _tool(
        "roll_back",
        "Put one service back to an earlier version. It takes about two minutes.",
        service="The service's name, as in the alert.",
        version="The version to go back to, as list_deployments names it.",
    ),
    _tool(
        "page_owner",
        "Call the person who owns a service, day or night.",
        service="The service's name, as in the alert.",
        message="One sentence that says what is wrong and how many customers it concerns.",
    ),
)

PLANNER = """\
You plan journeys by train for travellers who would rather not fly. You speak to one traveller at a
time. Find out where the journey starts and ends, on which day, and what matters most: the price,
the number of changes, or the time.

Look things up with the tools, one at a time, and never invent a train, a price or a time. Times are
local to the station. A change of trains takes at least twelve minutes, in another station of the
same town at least forty. Prices are in euros for one adult; children under twelve travel free with
an adult, bicycles need a reservation, and dogs pay half. Offer at most two journeys, the better one
first, and say in one sentence each what speaks for it. Reserve nothing before the traveller has
agreed to the price. Answer in short sentences and leave out what the traveller already knows."""

PLANNER_TOOLS = (
    _tool(
        "find_trains",
        "Connections between two stations on one day, in the order of their departure.",
        start="The station where the journey starts.",
        end="The station where the journey ends.",
        day="The day, as year-month-day.",
    ),
    _tool(
        "read_price",
        "The cheapest price for one connection, and the seats that are left at that price.",
        connection="The connection's number, as find_trains gives it.",
        travel_class="First or second.",
    ),
    _tool(
        "check_platform",
        "Where a train stops, and how far the platform is from another one, in minutes.",
        station="The station's name.",
        train="The train's number.",
    ),
    _tool(
        "reserve",
        "Reserve seats. The traveller pays at once.",
        connection="The connection's number, as find_trains gives it.",
        seats="How many seats, as a whole number.",
        extras="Bicycles or dogs, or none.",
    ),
)


def _operator(service: str, symptom: str, version: str, log_line: str, p99: int) -> Agent:
    turns = (
        _user(f"Alert: {service} is {symptom}. It began nine minutes ago. What do you do first?"),
        _result(
            service=service,
            minutes=15,
            rate=[212, 215, 209, 140, 96],
            p50=[31, 30, 33, 88, 120],
            p99=[140, 138, 151, p99 // 2, p99],
            errors=[0.001, 0.001, 0.002, 0.081, 0.163],
        ),
        _result(service=service, lines=[log_line, log_line, f"{service}: retry 3 of 3"]),
        _result(
            service=service,
            deployments=[
                {"version": version, "author": "mira", "minutes_ago": 11},
                {"version": "2024.7", "author": "jonas", "minutes_ago": 4410},
            ],
        ),
        _user(f"You may roll {service} back. Say how you will know that it helped."),
    )
    return Agent(f"operator of {service}", OPERATOR, OPERATOR_TOOLS, turns)


def _planner(start: str, end: str, wish: str, change: str, price: int) -> Agent:
    turns = (
        _user(f"I want to go from {start} to {end} on the third of May. {wish}"),
        _result(
            connections=[
                {"number": "C1", "departs": "07:04", "arrives": "13:52", "change": change},
                {"number": "C2", "departs": "09:31", "arrives": "15:20", "change": None},
                {"number": "C3", "departs": "14:10", "arrives": "21:46", "change": change},
            ]
        ),
        _result(connection="C2", travel_class="second", price=price, seats_left=4),
        _user(f"And how much is the early one by way of {change}? We are two, with one bicycle."),
        _result(connection="C1", travel_class="second", price=price - 17, seats_left=11),
    )
    return Agent(f"journey to {end}", PLANNER, PLANNER_TOOLS, turns)


AGENTS = (
    _operator("checkout", "failing for one order in six", "2024.9", "pool is empty", 4200),
    _planner("Lyon", "Hamburg", "The fewer changes the better.", "Strasbourg", 118),
    _operator("search", "answering too slowly", "2024.8-b", "index shard 4 not found", 2900),
    _planner("Vienna", "Milan", "It has to be cheap.", "Villach", 79),
    _operator("mail", "sending every message twice", "2024.8", "lock expired", 1800),
    _planner("Prague", "Ghent", "I get nervous when a change is tight.", "Cologne", 134),
)
TURNS = 5
