# SPDX-License-Identifier: Apache-2.0
"""Reuse of prefixes: the right answers, and exactly the reuse that there should be."""

import pytest

from .conftest import Comparison, EngineFactory, cached
from .engines import Ask, assert_same, ideal_reuse, one_by_one
from .prompts import other_than, tokens, whole_blocks

pytestmark = pytest.mark.engine


@pytest.fixture(params=[16, 32])
def block_size(request: pytest.FixtureRequest) -> int:
    return request.param


# In the fixture's place, where what counts is how much of a block is shared.
every_block_size = pytest.mark.parametrize("block_size", [16, 32, 128])


@pytest.mark.parametrize("pace", ["one step", "staggered", "one by one"])
def test_shared_prefix(compare: Comparison, block_size: int, pace: str) -> None:
    """Two system prompts, several questions each: every question but the first reads its own."""
    systems = [tokens("system a", 100), tokens("system b", 75)]
    asks = [Ask(systems[i % 2] + tokens(i, 10 + 7 * i)) for i in range(8)]
    arrivals = {
        "one step": [0] * len(asks),
        "staggered": [2 * i for i in range(len(asks))],
        "one by one": one_by_one(asks),
    }[pace]
    answers = compare(asks, arrivals, block_size=block_size)
    assert cached(answers["blocks"]) == [0, 0] + [
        whole_blocks(len(systems[i % 2]), block_size) for i in range(2, 8)
    ]
    if pace == "one by one":
        assert cached(answers["radix"]) == [0, 0] + [100, 75] * 3


# With 128, each of the requests that part inside the block holds a block of its own.
@every_block_size
def test_divergence_at_every_offset_of_a_block(compare: Comparison, block_size: int) -> None:
    """Each request leaves the first prompt at another token of its second block."""
    base = tokens("base", 3 * block_size)
    asks = [Ask(base, max_tokens=2)]
    asks += [
        Ask((*base[:cut], other_than(base[cut]), *base[cut + 1 :]), max_tokens=2)
        for cut in range(block_size, 2 * block_size)
    ]
    answers = compare(asks, one_by_one(asks), block_size=block_size)
    assert cached(answers["blocks"]) == [0] + [block_size] * block_size
    assert cached(answers["radix"]) == [0, *range(block_size, 2 * block_size)]
    compare(asks, block_size=block_size)


@every_block_size
@pytest.mark.parametrize("beyond", [-1, 0, 1])
def test_resend(compare: Comparison, block_size: int, beyond: int) -> None:
    """A prompt of whole blocks, give or take one token, sent three times.

    At least one token is always computed, and what follows the prompt stays reachable: a prompt
    that goes on with the answer reads prompt and answer.
    """
    prompt = tokens("resend", 3 * block_size + beyond)
    asks = [Ask(prompt, max_tokens=block_size + 2)] * 3
    answers = compare(asks, one_by_one(asks), block_size=block_size)
    most = len(prompt) - 1
    assert cached(answers["blocks"]) == [0] + [whole_blocks(most, block_size)] * 2
    assert cached(answers["radix"]) == [0, most, most]

    said = prompt + tuple(answers["off"][0].tokens[0])
    computed = len(said) - 1  # the last sampled token's KV never was
    answers = compare([Ask(said + tokens("more", 5))], block_size=block_size)
    assert cached(answers["blocks"]) == [whole_blocks(computed, block_size)]
    assert cached(answers["radix"]) == [computed]


def test_resend_in_the_same_step(compare: Comparison, block_size: int) -> None:
    """Equal prompts admitted in one step share the blocks that the first is about to fill."""
    prompt = tokens("same step", 4 * block_size)
    answers = compare([Ask(prompt)] * 4, block_size=block_size)
    assert cached(answers["blocks"]) == [0] + [3 * block_size] * 3


@every_block_size
def test_conversation(compare: Comparison, block_size: int) -> None:
    """Six turns: each prompt is all that was said before and a new message."""
    said = 0
    prompt = tokens("system", 40)
    for turn in range(6):
        prompt += tokens(turn, 11 + turn)
        answers = compare([Ask(prompt, max_tokens=13)], block_size=block_size)
        computed = max(said - 1, 0)
        assert cached(answers["blocks"]) == [whole_blocks(computed, block_size)]
        assert cached(answers["radix"]) == [computed]
        prompt += tuple(answers["off"][0].tokens[0])
        said = len(prompt)


def test_short_prompts(compare: Comparison, block_size: int) -> None:
    """Prompts of fewer tokens than a block, from a single token on, next to longer ones."""
    base = tokens("short", 2 * block_size)
    asks = [Ask(base[:n]) for n in (1, 2, block_size - 1, block_size, block_size + 1)] * 2
    answers = compare(asks, one_by_one(asks), block_size=block_size)
    assert cached(answers["radix"]) == ideal_reuse(asks, answers["off"])


@every_block_size
def test_parallel_sampling_shares_its_prompt(
    engine: EngineFactory, compare: Comparison, block_size: int
) -> None:
    """n=5 computes its prompt once, and holds its whole blocks once."""
    prompt = tokens("parallel", 3 * block_size + 4)
    ask = Ask(prompt, n=5, temperature=1.0, seed=11, max_tokens=block_size)
    [answer] = compare([ask], block_size=block_size)["off"]
    assert len({tuple(t) for t in answer.tokens}) == 5, "the five continuations should differ"
    blocks = engine("blocks", block_size=block_size)
    assert (blocks.totals.requests, blocks.totals.hits) == (5, 4 * 3 * block_size)

    blocks.reset()
    blocks.add(ask)
    blocks.step()
    assert blocks.used_blocks == 3 + 5
    blocks.drain()

    # Each continuation can be continued by itself.
    asks = [Ask((*prompt, *t, 9)) for t in answer.tokens]
    answers = compare(asks, one_by_one(asks), block_size=block_size)
    computed = len(prompt) + block_size - 1
    assert cached(answers["radix"]) == [computed] * 5
    assert cached(answers["blocks"]) == [whole_blocks(computed, block_size)] * 5


@every_block_size
def test_parallel_sampling_of_a_cached_prompt(compare: Comparison, block_size: int) -> None:
    """Five continuations that all start inside the same cached block."""
    prompt = tokens("cached parallel", 3 * block_size + 4)
    asks = [Ask(prompt), Ask(prompt, n=5, temperature=1.0, seed=2, max_tokens=block_size)]
    answers = compare(asks, one_by_one(asks), block_size=block_size)
    assert cached(answers["blocks"])[1] == 3 * block_size
    assert cached(answers["radix"])[1] == len(prompt) - 1


def test_chunked_prefill(compare: Comparison, block_size: int) -> None:
    """Prompts computed in chunks smaller than a block, not aligned to it, sharing as they go."""
    base = tokens("chunks", 150)
    asks = [Ask(base + tokens(i, 9 * i)) for i in range(5)] + [Ask(base[:77] + tokens("x", 30))]
    for arrivals in (None, [0, 1, 2, 3, 9, 10], one_by_one(asks)):
        compare(asks, arrivals, block_size=block_size, max_num_batched_tokens=33)
        compare(asks, arrivals, block_size=block_size, long_prefill_token_threshold=13)


def test_salts_never_share(engine: EngineFactory, compare: Comparison, block_size: int) -> None:
    """Tenants with the same prompt and different salts read nothing of each other."""
    prompt = tokens("tenants", 90)
    asks = [Ask(prompt, salt=salt) for salt in (None, "a", "b", "ab")]
    for arrivals in (one_by_one(asks), None):
        answers = compare(asks, arrivals, block_size=block_size)
        assert cached(answers["blocks"]) == cached(answers["radix"]) == [0] * 4
        again = compare(asks, arrivals, block_size=block_size)
        assert cached(again["blocks"]) == [whole_blocks(89, block_size)] * 4
        assert cached(again["radix"]) == [89] * 4
        for kind in ("stock", "blocks", "radix"):
            engine(kind, block_size=block_size).reset()


def test_a_salt_does_not_run_into_the_prompt(compare: Comparison) -> None:
    """The salt "a" before a text that begins with "b" is not the salt "ab"."""
    a, b, *rest = tokens("run", 80)
    asks = [Ask((b, *rest), salt=str(a)), Ask(tuple(rest), salt=f"{a}{b}"), Ask((a, b, *rest))]
    answers = compare(asks, one_by_one(asks))
    assert cached(answers["radix"]) == [0, 0, 0]


def test_prompt_logprobs(compare: Comparison, block_size: int) -> None:
    """A request for the logprobs of its prompt computes all of it, and leaves it to others."""
    prompt = tokens("logprobs", 70)
    asks = [
        Ask(prompt),
        Ask(prompt, prompt_logprobs=3),
        Ask((*prompt, 7), prompt_logprobs=0),
        Ask(prompt + (7,) * block_size),
        Ask(prompt + (7,) * block_size + (8,)),
    ]
    answers = compare(asks, one_by_one(asks), block_size=block_size)
    shared, longer = (whole_blocks(n, block_size) for n in (70, 70 + block_size))
    assert cached(answers["blocks"]) == [0, 0, 0, shared, longer]
    assert cached(answers["radix"]) == [0, 0, 0, 71, 70 + block_size]
    logprobs = answers["radix"][1].prompt_logprobs
    assert logprobs is not None and len(logprobs) == 70


def test_skip_reading_prefix_cache(compare: Comparison, engine: EngineFactory) -> None:
    """A request may decline to read the cache; others still read what it wrote."""
    prompt = tokens("skip", 100)
    asks = [Ask(prompt), Ask(prompt, skip_reading=True), Ask(prompt + (5,) * 40, skip_reading=True)]
    asks.append(Ask(prompt + (5,) * 40 + (6,)))
    answers = compare(asks, one_by_one(asks))
    assert cached(answers["blocks"]) == [0, 0, 0, 128]
    assert cached(answers["radix"]) == [0, 0, 0, 140]
    assert engine("radix").totals.requests == 2, "a request that declined was counted as a lookup"


def test_answers_in_flight_are_shared(compare: Comparison, block_size: int) -> None:
    """A prompt that continues a running request reads the blocks that it has already filled."""
    prompt = tokens("flight", 50)
    [answer] = compare([Ask(prompt, max_tokens=60)], block_size=block_size)["off"]
    follower = prompt + tuple(answer.tokens[0][:40]) + (4, 5)
    asks = [Ask((*prompt, 3), max_tokens=60), Ask(prompt, max_tokens=60), Ask(follower)]
    compare(asks, [0, 0, 45], block_size=block_size)


def test_same_answers_cold_and_warm(engine: EngineFactory) -> None:
    """The same requests twice on one engine."""
    asks = [Ask(tokens(i % 5, 60 + i), max_tokens=20) for i in range(20)]
    radix = engine("radix")
    cold = radix.run(asks)
    assert_same(cold, radix.run(asks))
