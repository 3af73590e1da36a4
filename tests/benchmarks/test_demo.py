# SPDX-License-Identifier: Apache-2.0
"""What the demo says about the servers follows from what they answered."""

import io

import pytest
from rich.console import Console

from benchmarks.demo import demo
from benchmarks.demo.demo import Answer, Result
from benchmarks.demo.dialogues import AGENTS, TURNS
from benchmarks.demo.servers import ARMS
from vllm_radix.bench.server import PrefixCacheCounts, ServerError


def result(number: int, *texts: str, ttft: float = 0.25) -> Result:
    """An arm's result: two agents, a turn for each pair of texts."""
    answers = [Answer(f"agent {i % 2}", text, 7, ttft) for i, text in enumerate(texts)]
    turns = [answers[i : i + 2] for i in range(0, len(answers), 2)]
    # The warm-up had looked up 30 tokens and found 10.
    counts = [PrefixCacheCounts(30, 10), PrefixCacheCounts(230, 10 + 50 * number)]
    return Result(ARMS[number], turns, counts)


def test_every_agent_has_every_turn_and_a_name_of_its_own() -> None:
    assert {len(agent.turns) for agent in AGENTS} == {TURNS}
    assert len({agent.name for agent in AGENTS}) == len(AGENTS)
    assert len({agent.system for agent in AGENTS}) == 2


def test_the_first_difference_of_each_arm_is_told() -> None:
    reference = result(0, "a", "b", "c", "d")
    results = [reference, result(1, "a", "b", "c", "d"), result(2, "a", "b", "x", "y")]
    differences = demo.find_differences(results)
    assert list(differences) == [ARMS[2].name]
    assert differences[ARMS[2].name].splitlines() == [
        "turn 2, agent 0:",
        f"  {ARMS[0].name}: 'c'",
        f"  {ARMS[2].name}: 'x'",
    ]


def test_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "TURNS", 1)
    results = [result(0, "a", "b"), result(1, "a", "b", ttft=0.125), result(2, "a", "x")]
    output = io.StringIO()
    Console(file=output, width=80).print(demo.table(results, demo.find_differences(results)))
    rows = {
        cells[0]: cells[1:]
        for line in output.getvalue().splitlines()
        if len(cells := [cell.strip() for cell in line.strip("│┃").split("│")]) == 4
    }
    assert rows["time to first token, turn 1"] == ["250 ms", "125 ms", "250 ms"]
    assert rows["all turns"] == ["250 ms", "125 ms", "250 ms"]
    assert rows["hit rate of the prefix cache"] == ["0.0%", "25.0%", "50.0%"]
    assert rows["tokens generated"] == ["14", "14", "14"]
    assert rows["texts"] == ["reference", "the same", "differ"]


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (lambda arm: result(ARMS.index(arm), *"ab" * TURNS), 0),
        (lambda arm: result(ARMS.index(arm), *(arm.name[0] + "b") * TURNS), 1),
        (ServerError("it died"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_code(monkeypatch: pytest.MonkeyPatch, outcome: object, code: int) -> None:
    def measure(arm: demo.Arm) -> Result:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome(arm)

    monkeypatch.setattr(demo, "measure", measure)
    assert demo.main() == code
