# SPDX-License-Identifier: Apache-2.0
"""The yardstick itself: what these tests can see, and what they cannot mistake for a fault."""

import pytest

from .conftest import EngineFactory
from .engines import LOGPROB_TOLERANCE, Ask, assert_same, max_difference
from .prompts import other_than, tokens

pytestmark = pytest.mark.engine


def test_answers_do_not_depend_on_batching(engine: EngineFactory) -> None:
    """With the cache off: together, one by one, and in small chunks give the same answers."""
    asks = [Ask(tokens(i, 20 + 37 * i % 300), max_tokens=16) for i in range(24)]
    together = engine("off").run(asks)
    assert_same(together, [engine("off").run([ask])[0] for ask in asks])
    assert_same(together, engine("off", max_num_batched_tokens=48).run(asks))


def test_no_two_tokens_are_nearly_tied(engine: EngineFactory) -> None:
    """The best token leads by far more than the tolerance, so equal tokens are a fair demand."""
    asks = [Ask(tokens(i, 20 + 37 * i % 300), max_tokens=16) for i in range(24)]
    for answer in engine("off").run(asks):
        for position in answer.logprobs[0]:
            best, second, *_ = sorted(position.values(), reverse=True)
            assert best - second > 5 * LOGPROB_TOLERANCE


@pytest.mark.parametrize("position", [0, 1, 31, 64, 127])
def test_one_wrong_token_shows(engine: EngineFactory, position: int) -> None:
    """KV of one wrong token anywhere in the prompt moves the logprobs far beyond the tolerance."""
    prompt = list(tokens("sensitive", 128))
    right = engine("off").run([Ask(tuple(prompt), max_tokens=4)])
    prompt[position] = other_than(prompt[position])
    wrong = engine("off").run([Ask(tuple(prompt), max_tokens=4)])
    first = [run[0].logprobs[0][:1] for run in (right, wrong)]
    assert max_difference(*first) > 50 * LOGPROB_TOLERANCE
    with pytest.raises(AssertionError, match="differ"):
        assert_same(right, wrong)
