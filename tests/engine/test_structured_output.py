# SPDX-License-Identifier: Apache-2.0
"""Structured output: a grammar restricts each token, whatever part of the prompt was cached."""

import json
import re
from typing import Any

import pytest
from vllm.sampling_params import StructuredOutputsParams

from .conftest import EngineFactory
from .engines import Ask, Kind, assert_same, in_order_of_arrival, one_by_one
from .prompts import tokens

pytestmark = pytest.mark.engine

SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "kind": {"enum": ["block", "prefix", "request"]}},
    "required": ["ok", "kind"],
    "additionalProperties": False,
}
YEAR = r"(19|20)[0-9]{2}"

# A random model would fill its answer with the white space that JSON allows.
STRUCTURED: dict[str, Any] = {
    "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True}
}


def _asks() -> list[Ask]:
    """Free, regex and JSON requests, interleaved, on one shared prompt."""
    prompt = tokens("grammar", 70)
    structures: list[dict[str, Any] | None] = [None, {"regex": YEAR}, {"json": SCHEMA}] * 3
    return [
        Ask(
            prompt + tokens(i, 3 * i),
            max_tokens=60 if s else 8,
            structure=StructuredOutputsParams(**s) if s else None,
        )
        for i, s in enumerate(structures)
    ]


@pytest.mark.parametrize("pace", ["together", "one by one"])
@pytest.mark.parametrize("chunk", [2048, 32])
def test_answers(engine: EngineFactory, ours: Kind, chunk: int, pace: str) -> None:
    asks = _asks()
    expected = engine("off", **STRUCTURED).run(asks)
    radix = engine(ours, **STRUCTURED, max_num_batched_tokens=chunk)
    got = radix.run(asks, one_by_one(asks) if pace == "one by one" else None)
    assert_same(expected, got)
    assert radix.totals.hits > 0

    decode = radix.llm.get_tokenizer().decode
    texts = [decode(a.tokens[0], skip_special_tokens=True) for a in got]
    assert all(re.fullmatch(YEAR, text) for text in texts[1::3])
    assert all(json.loads(text)["kind"] in ("block", "prefix", "request") for text in texts[2::3])


def test_preempted(engine: EngineFactory, ours: Kind) -> None:
    """A grammar keeps its place over a preemption."""
    asks = [
        Ask(tokens(i, 60), max_tokens=70, structure=StructuredOutputsParams(regex="[a-z ]{150}"))
        for i in range(6)
    ]
    expected = engine("off", block_size=16).run(asks)
    radix = engine(
        ours,
        block_size=16,
        num_gpu_blocks_override=24,
        max_model_len=320,
        additional_config=in_order_of_arrival(ours),
    )
    assert_same(expected, radix.run(asks))
    assert radix.totals.preemptions > 0
