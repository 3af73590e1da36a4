# SPDX-License-Identifier: Apache-2.0
"""Generated workloads are reproducible, and share what they say they share."""

from collections import Counter

import numpy as np
import pytest

from vllm_radix.bench.replay.sessions import Call, Workload
from vllm_radix.bench.replay.workloads import GENERATORS, make_generator

SMALL = {
    "batch": {"requests": 60, "prefixes": 4, "prefix_tokens": 40, "suffix_tokens": 8},
    "agents": {"sessions": 12, "turns": 4, "system_prompts": 3, "system_tokens": 50},
    "tree-search": {"problems": 3, "depth": 3, "instruction_tokens": 30, "problem_tokens": 10},
    "rag": {"requests": 40, "documents": 8, "document_tokens": [20, 30]},
    "screens": {"sessions": 8, "turns": 3, "tasks": 2, "screen_tokens": [20, 30]},
    "unique": {"requests": 30, "prompt_tokens": [20, 40]},
}


def generate(name: str, seed: int = 0) -> Workload:
    return make_generator(name, SMALL[name]).generate(seed)


def texts(workload: Workload) -> list[list[int]]:
    return [call.text().tolist() for call in workload.calls()]


def starts_with(text: np.ndarray, prefix: np.ndarray) -> bool:
    return np.array_equal(text[: len(prefix)], prefix)


@pytest.mark.parametrize("name", GENERATORS)
def test_a_seed_gives_one_workload(name: str) -> None:
    assert texts(generate(name, 3)) == texts(generate(name, 3))
    assert texts(generate(name, 3)) != texts(generate(name, 4))
    starts = [session.start for session in generate(name, 3).sessions]
    assert starts == [session.start for session in generate(name, 3).sessions]


@pytest.mark.parametrize("name", GENERATORS)
def test_a_workload_knows_its_size(name: str) -> None:
    workload = generate(name)
    calls = list(workload.calls())
    assert workload.num_requests == len(calls)
    assert workload.max_tokens == max(len(call.prompt) + len(call.answer) for call in calls)
    assert min(min(len(call.prompt), len(call.answer)) for call in calls) > 0
    names = [session.name for session in workload.sessions]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", ["agents", "tree-search"])
def test_a_turn_contains_an_answer_of_the_turn_before(name: str) -> None:
    for session in generate(name).sessions:
        for before, after in zip(session.turns, session.turns[1:], strict=False):
            for call in after.calls:
                assert any(starts_with(call.prompt, one.text()) for one in before.calls)


def test_batch_has_as_many_prefixes_as_it_says() -> None:
    workload = generate("batch")
    prefixes = Counter(call.prompt[:40].tobytes() for call in workload.calls())
    assert len(prefixes) == 4
    assert len({call.prompt[40:].tobytes() for call in workload.calls()}) == 60
    assert {session.start for session in workload.sessions} == {0.0}


def test_agents_share_system_prompts_evenly_and_nothing_else() -> None:
    workload = generate("agents")
    first = [session.turns[0].calls[0].prompt for session in workload.sessions]
    systems = Counter(prompt[:50].tobytes() for prompt in first)
    assert sorted(systems.values()) == [4, 4, 4]
    assert len({prompt[50:].tobytes() for prompt in first}) == 12
    assert all(0 <= session.start <= 1 for session in workload.sessions)
    assert all(turn.think_time > 0 for session in workload.sessions for turn in session.turns)


def test_candidates_have_one_prompt_for_each_kept_state() -> None:
    for session in generate("tree-search").sessions:
        assert [len(turn.calls) for turn in session.turns] == [5, 15, 15]
        for turn in session.turns:
            prompts = Counter(call.prompt.tobytes() for call in turn.calls)
            assert set(prompts.values()) == {5}
            assert len({call.answer.tobytes() for call in turn.calls}) == len(turn.calls)


def test_rag_retrieves_some_documents_more_often() -> None:
    workload = make_generator(
        "rag", {"requests": 200, "documents": 8, "documents_per_request": 1}
    ).generate(0)
    first = Counter(call.prompt[150:160].tobytes() for call in workload.calls())
    assert len(first) == 8
    assert max(first.values()) > 3 * min(first.values())
    assert len({call.prompt[:150].tobytes() for call in workload.calls()}) == 1


def test_unique_prompts_begin_differently() -> None:
    def beginning(call: Call) -> int:
        return int(call.prompt[0])

    calls = list(generate("unique").calls())
    assert len({beginning(call) for call in calls}) == len(calls)


@pytest.mark.parametrize("name", ["rag", "unique"])
def test_arrivals_have_the_rate_asked_for(name: str) -> None:
    workload = make_generator(name, {**SMALL[name], "requests": 400, "rate": 10.0}).generate(0)
    starts = [session.start for session in workload.sessions]
    assert starts == sorted(starts)
    assert starts[-1] == pytest.approx(40, rel=0.2)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"sesions": 3}, r"^agents: sesions: .*; the parameters are sessions, turns.*\.$"),
        ({"turns": 0}, "agents: turns: Input should be greater than or equal to 1"),
        ({"think_time": "long"}, "agents: think_time: Input should be a valid number"),
    ],
)
def test_wrong_parameters_are_named(parameters: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_generator("agents", parameters)


def test_screens_stand_where_their_spans_say() -> None:
    """They stay in the conversation, and the agents of a task open the same ones."""
    tasks = set()
    for session in generate("screens").sessions:
        shown: list[bytes] = []
        for number, call in enumerate(session.calls(), 1):
            screens = [call.prompt[span.start : span.stop].tobytes() for span in call.images]
            assert len(screens) == number and screens[:-1] == shown
            shown = screens
        tasks.add(tuple(shown))
    assert len(tasks) == 2
