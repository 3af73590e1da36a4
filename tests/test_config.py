# SPDX-License-Identifier: Apache-2.0
"""Options: what is accepted, and what is said about the rest."""

from typing import Any

import pytest

from vllm_radix.config import RadixConfig
from vllm_radix.tree import POLICIES

OPTIONS = ", ".join(RadixConfig.model_fields)


@pytest.mark.parametrize("additional", [{}, {"radix": {}}, {"somebody else's": {"x": 1}}, None])
def test_every_option_has_a_default(additional: Any) -> None:
    assert RadixConfig.from_additional_config(additional) == RadixConfig()


def test_options_are_read() -> None:
    config = RadixConfig.from_additional_config(
        {"radix": {"eviction": "slru", "free_watermark": 0.25, "skip_hashing": False}, "other": 1}
    )
    assert (config.eviction, config.free_watermark, config.skip_hashing) == ("slru", 0.25, False)
    assert config.debug_checks is RadixConfig().debug_checks


def test_a_watermark_may_be_a_whole_number() -> None:
    assert RadixConfig.from_additional_config({"radix": {"free_watermark": 0}}).free_watermark == 0


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_can_be_chosen(name: str) -> None:
    assert RadixConfig.from_additional_config({"radix": {"eviction": name}}).eviction == name


@pytest.mark.parametrize(
    ("section", "complaint"),
    [
        ({"evcition": "lru"}, "there is no option 'evcition'"),
        ({"eviction": "mru"}, "option 'eviction' is 'mru'"),
        ({"eviction": None}, "option 'eviction' is None"),
        ({"free_watermark": 1.5}, "option 'free_watermark' is 1.5"),
        ({"free_watermark": -0.1}, "option 'free_watermark' is -0.1"),
        ({"free_watermark": "0.1"}, "option 'free_watermark' is '0.1'"),
        ({"skip_hashing": 1}, "option 'skip_hashing' is 1"),
        ({"debug_checks": "yes"}, "option 'debug_checks' is 'yes'"),
        ("lru", '"radix" must be an object'),
        (["lru"], '"radix" must be an object'),
        (None, '"radix" must be an object'),
    ],
    ids=str,
)
def test_a_mistake_is_named_in_one_sentence_with_what_is_valid(
    section: Any, complaint: str
) -> None:
    with pytest.raises(ValueError) as caught:
        RadixConfig.from_additional_config({"radix": section})
    message = str(caught.value)
    assert complaint in message
    assert OPTIONS in message
    assert message.startswith('--additional-config: "radix"')
    assert "\n" not in message


def test_all_mistakes_are_named_at_once() -> None:
    with pytest.raises(ValueError) as caught:
        RadixConfig.from_additional_config({"radix": {"evcition": "lru", "free_watermark": 2}})
    assert "there is no option 'evcition'" in str(caught.value)
    assert "option 'free_watermark' is 2" in str(caught.value)


def test_an_option_outside_the_section_is_an_error() -> None:
    with pytest.raises(ValueError, match=r'eviction must stand inside "radix"'):
        RadixConfig.from_additional_config({"eviction": "lfu"})
