# SPDX-License-Identifier: Apache-2.0
"""A trained model: SmolLM2-135M-Instruct answers the same with and without the cache."""

from pathlib import Path
from typing import Any

import pytest

from .conftest import EngineFactory, cached
from .engines import Ask, Engine, Kind, assert_same, ideal_reuse, one_by_one
from .prompts import whole_blocks

pytestmark = pytest.mark.engine

SYSTEMS = [
    "You are a helpful travel agent. You can call the tools search_flights(origin, destination, "
    "date) and book_hotel(city, nights). Ask for what is missing. Answer in one short sentence.",
    "You are a patient teacher of physics. Explain with everyday examples and without formulas. "
    "If a question is not about physics, say so politely and answer nothing else.",
]
QUESTIONS = [
    "Hello, who are you?",
    "What can you do for me?",
    "Why is the sky blue in the morning and red in the evening?",
    "I want to go from Paris to Rome on Friday.",
    "Please repeat your last answer with other words.",
]
ARGS: dict[str, Any] = {"kv_cache_memory_bytes": 256 << 20, "max_model_len": 1024}


@pytest.fixture(scope="session")
def smollm2() -> Path:
    smollm2 = pytest.importorskip("benchmarks.models.smollm2", reason="run from the repository")
    pytest.importorskip("gguf", reason="reading the weights of SmolLM2 needs the package gguf")
    try:
        path: Path = smollm2.checkpoint()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    return path


def _chat(engine: Engine, messages: list[dict[str, str]]) -> tuple[int, ...]:
    ids = engine.llm.get_tokenizer().apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False
    )
    return tuple(ids)


def _questions(engine: Engine) -> list[Ask]:
    """Every question to both systems."""
    return [
        Ask(
            _chat(
                engine,
                [{"role": "system", "content": system}, {"role": "user", "content": question}],
            )
        )
        for question in QUESTIONS
        for system in SYSTEMS
    ]


@pytest.mark.parametrize("pace", ["together", "one by one"])
def test_shared_system_prompts(engine: EngineFactory, smollm2: Path, ours: Kind, pace: str) -> None:
    off, eng = engine("off", smollm2, **ARGS), engine(ours, smollm2, **ARGS)
    asks = _questions(off)
    arrivals = one_by_one(asks) if pace == "one by one" else None
    expected = off.run(asks)
    got = eng.run(asks, arrivals)
    assert_same(expected, got)
    if pace == "one by one":
        ideal = ideal_reuse(asks, expected)
        assert cached(got) == [n if ours == "radix" else whole_blocks(n, 32) for n in ideal]
        assert min(ideal[2:]) > 32, "the questions share their system prompts"


def test_conversation(engine: EngineFactory, smollm2: Path) -> None:
    """Four turns through the chat template: each reads all that was said before."""
    off, radix = engine("off", smollm2, **ARGS), engine("radix", smollm2, **ARGS)
    messages = [{"role": "system", "content": SYSTEMS[0]}]
    said: tuple[int, ...] = ()
    for question in QUESTIONS[:4]:
        messages.append({"role": "user", "content": question})
        ask = Ask(_chat(off, messages), max_tokens=12)
        expected, got = off.run([ask]), radix.run([ask])
        assert_same(expected, got)
        assert cached(got) == [len(said)]
        answer = expected[0].tokens[0]
        said = ask.prompt + tuple(answer[:-1])
        # What the client sends back is the answer's text, which may be tokenised otherwise.
        messages.append({"role": "assistant", "content": off.llm.get_tokenizer().decode(answer)})


def test_divergence_inside_a_block(engine: EngineFactory, smollm2: Path) -> None:
    """One prompt, left at every fourth token of its third block."""
    off, radix = engine("off", smollm2, **ARGS), engine("radix", smollm2, **ARGS)
    base = _questions(off)[4].prompt
    asks = [Ask(base, max_tokens=2)]
    asks += [
        Ask((*base[:cut], (base[cut] + 1000) % 40000, *base[cut + 1 :]), max_tokens=2)
        for cut in range(32, 64, 4)
    ]
    expected = off.run(asks)
    got = radix.run(asks, one_by_one(asks))
    assert_same(expected, got)
    assert cached(got) == [0, *range(32, 64, 4)]


def test_parallel_sampling_and_salts(engine: EngineFactory, smollm2: Path, ours: Kind) -> None:
    off, eng = engine("off", smollm2, **ARGS), engine(ours, smollm2, **ARGS)
    prompt = _questions(off)[0].prompt
    asks = [
        Ask(prompt, n=5, temperature=1.0, seed=4),
        Ask(prompt, salt="a"),
        Ask(prompt, salt="b"),
        Ask(prompt),
    ]
    expected = off.run(asks)
    got = eng.run(asks, one_by_one(asks))
    assert_same(expected, got)
    assert cached(got)[1:3] == [0, 0]
    assert cached(got)[3] == (
        len(prompt) - 1 if ours == "radix" else whole_blocks(len(prompt) - 1, 32)
    )


def test_preempted(engine: EngineFactory, smollm2: Path) -> None:
    """A pool of 13 blocks for six requests that grow to five or six each."""
    off = engine("off", smollm2, **ARGS)
    asks = [Ask(ask.prompt, max_tokens=64) for ask in _questions(off)[:6]]
    expected = off.run(asks)
    radix = engine("radix", smollm2, **{**ARGS, "max_model_len": 384}, num_gpu_blocks_override=14)
    assert_same(expected, radix.run(asks))
    assert radix.totals.preemptions > 0
