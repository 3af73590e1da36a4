# SPDX-License-Identifier: Apache-2.0
"""What a user types for names with options, and for numbers of tokens."""

import pytest

from vllm_radix.bench.replay.names import parse_counts, split_options


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("radix", ("radix", {})),
        ('radix:{"eviction": "lfu"}', ("radix", {"eviction": "lfu"})),
        ('a.b.C:{"x": {"y": 1}}', ("a.b.C", {"x": {"y": 1}})),
    ],
)
def test_options_follow_a_colon(text: str, expected: object) -> None:
    assert split_options(text) == expected


@pytest.mark.parametrize("text", ["radix:", "radix:{", "radix:3", "radix:[1]"])
def test_what_is_no_options_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=r"^'radix:.*colon.*\.$"):
        split_options(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("60000", [60000]), ("60k,1.5M", [60000, 1500000]), ("2k, 4K", [2000, 4000])],
)
def test_counts(text: str, expected: list[int]) -> None:
    assert parse_counts(text) == expected


@pytest.mark.parametrize("text", ["1000.1m", "9" * 400])
def test_a_count_that_no_machine_holds_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=f"^'{text}' is more than the 1,000m tokens"):
        parse_counts(text)


@pytest.mark.parametrize("text", ["x", "0", "-1", "1g", "10k,", "1e5"])
def test_what_is_no_count_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="is no number of tokens: write 60000"):
        parse_counts(text)
