# SPDX-License-Identifier: Apache-2.0
"""Wherever a match that ends inside a block would be wrong, it doesn't."""

from types import SimpleNamespace
from typing import Any

import pytest
from scheduling.factory import make_configs, make_scheduler
from vllm.config import KVTransferConfig

from vllm_radix.cache import granularity
from vllm_radix.cache.granularity import why_whole_blocks
from vllm_radix.scheduling import scheduler


def config(**changes: Any) -> Any:
    """A configuration in which some parts are not as by default."""
    vllm_config, _ = make_configs()
    parts = {"parallel_config", "cache_config", "speculative_config"}
    view = SimpleNamespace(**{part: getattr(vllm_config, part) for part in parts})
    view.kv_transfer_config = None
    for name, value in changes.items():
        setattr(view, name, value)
    return view


def parallel(**sizes: int) -> SimpleNamespace:
    ones = {"decode_context_parallel_size": 1, "prefill_context_parallel_size": 1}
    return SimpleNamespace(**{**ones, **sizes})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"speculative_config": SimpleNamespace(method="ngram")},
        {"speculative_config": SimpleNamespace(method="suffix")},
        {"parallel_config": parallel()},
        {"cache_config": SimpleNamespace(cache_dtype="fp8")},
        {"aux_output_config": SimpleNamespace(enabled=False)},
    ],
    ids=str,
)
def test_every_token(changes: dict[str, Any]) -> None:
    assert why_whole_blocks(config(**changes)) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kv_transfer_config": KVTransferConfig()}, "connector"),
        ({"speculative_config": SimpleNamespace(method="eagle3")}, "drafter (eagle3)"),
        ({"speculative_config": SimpleNamespace(method="mtp")}, "drafter (mtp)"),
        ({"speculative_config": SimpleNamespace(method="draft_model")}, "drafter (draft_model)"),
        ({"parallel_config": parallel(decode_context_parallel_size=2)}, "context parallelism"),
        ({"parallel_config": parallel(prefill_context_parallel_size=2)}, "context parallelism"),
        ({"cache_config": SimpleNamespace(cache_dtype="fp8_per_token_head")}, "quantised"),
        ({"cache_config": SimpleNamespace(cache_dtype="int8_per_token_head")}, "quantised"),
        ({"aux_output_config": SimpleNamespace(enabled=True)}, "auxiliary outputs"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_whole_blocks(changes: dict[str, Any], reason: str) -> None:
    why = why_whole_blocks(config(**changes))
    assert why is not None and reason in why


def on_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    device = SimpleNamespace(
        device_name="abacus", is_cuda_alike=lambda: False, is_cpu=lambda: False
    )
    monkeypatch.setattr(granularity, "current_platform", device)


@pytest.mark.parametrize(
    ("option", "platform", "reason"),
    [
        ({}, None, None),
        ({}, on_another_device, "not known whether a abacus worker can copy blocks"),
        ({"token_granular": False}, None, "it is turned off"),
        ({"token_granular": False}, on_another_device, "it is turned off"),
    ],
    ids=["every token", "unknown device", "turned off", "both"],
)
def test_the_scheduler_says_so_once(
    monkeypatch: pytest.MonkeyPatch, option: dict[str, Any], platform: Any, reason: str | None
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(
        scheduler.logger, "info", lambda text, *args: lines.append(text % tuple(args))
    )
    if platform is not None:
        platform(monkeypatch)
    made = make_scheduler(radix=option)
    assert made.radix_manager._token_granular == (reason is None)
    told = [line for line in lines if "whole blocks" in line]
    assert len(told) == (reason is not None)
    assert reason is None or reason in told[0]
