# SPDX-License-Identifier: Apache-2.0
"""LoRA: the same text under another adapter has other KV."""

from pathlib import Path
from typing import Any

import pytest
from vllm.lora.request import LoRARequest

from .conftest import EngineFactory
from .engines import Ask, Kind, assert_same, one_by_one
from .models import LORA_RANK, tiny_lora
from .prompts import reusable, tokens

pytestmark = pytest.mark.engine

# vLLM's CPU kernels give a base-model request the last LoRA slot when adapters share its batch:
# more slots than adapters leave that one empty.
LORA: dict[str, Any] = {"enable_lora": True, "max_loras": 8, "max_lora_rank": LORA_RANK}
PROMPT = tokens("lora", 70)


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [tiny_lora(tmp_path_factory.mktemp(f"lora-{i}"), seed=i) for i in range(2)]


def test_adapters_never_share(engine: EngineFactory, ours: Kind, adapters: list[Path]) -> None:
    """Base model and two adapters, together and one by one: no hit but on one's own."""
    requests = [None, *(LoRARequest(f"l{i}", i + 1, str(p)) for i, p in enumerate(adapters))]
    asks = [Ask(PROMPT, lora=lora) for lora in requests]
    expected = engine("off", **LORA).run(asks)
    assert len({tuple(a.tokens[0]) for a in expected}) == 3, "the adapters should matter"
    radix = engine(ours, **LORA)
    for arrivals in (None, one_by_one(asks)):
        got = radix.run(asks, arrivals)
        assert_same(expected, got)
        assert [a.cached for a in got] == [0, 0, 0]
        again = radix.run(asks, arrivals)
        assert_same(expected, again)
        assert [a.cached for a in again] == [reusable(ours, len(PROMPT) - 1, 32)] * 3
        radix.reset()


def test_a_salt_is_not_an_adapter(engine: EngineFactory, ours: Kind, adapters: list[Path]) -> None:
    """A salt equal to an adapter's name, and an adapter with and without salts, share nothing."""
    lora = LoRARequest("l0", 1, str(adapters[0]))
    asks = [
        Ask(PROMPT, lora=lora),
        Ask(PROMPT, salt="l0"),
        Ask(PROMPT),
        Ask(PROMPT, lora=lora, salt="l0"),
        Ask(PROMPT, lora=lora, salt="s"),
        Ask(PROMPT, salt="s"),
    ]
    expected = engine("off", **LORA).run(asks)
    got = engine(ours, **LORA).run(asks, one_by_one(asks))
    assert_same(expected, got)
    assert [a.cached for a in got] == [0] * len(asks)


@pytest.mark.parametrize("in_place", [False, True])
def test_same_name_other_weights(
    engine: EngineFactory, ours: Kind, adapters: list[Path], in_place: bool
) -> None:
    """An adapter loaded again under its name with other weights reuses nothing."""
    requests = [
        LoRARequest("name", 13 if in_place else 11 + i, str(path), load_inplace=in_place)
        for i, path in enumerate(adapters)
    ]
    asks = [Ask(PROMPT, lora=lora) for lora in requests]
    expected = engine("off", **LORA).run(asks, one_by_one(asks))
    assert expected[0].tokens != expected[1].tokens
    got = engine(ours, **LORA).run(asks, one_by_one(asks))
    assert_same(expected, got)
    assert [a.cached for a in got] == [0, 0]
