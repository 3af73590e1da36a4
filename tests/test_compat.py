# SPDX-License-Identifier: Apache-2.0
"""Versions, and the hooks into the engine core."""

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from scheduling.factory import lora, make_scheduler
from vllm.config import KVTransferConfig
from vllm.v1.core.sched.async_scheduler import AsyncScheduler as VllmAsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler as VllmScheduler
from vllm.v1.engine import core

from vllm_radix import compat

# ---------------------------------------------------------------------- versions


@pytest.mark.parametrize(
    "found", ["0.32.0", "0.32.0+cpu", "0.32.1", "0.33.0rc1", "0.33.1.dev7+gabc", "0.33.9"]
)
def test_supported_versions(monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    monkeypatch.setattr(compat, "vllm_version", lambda: found)
    compat.require_supported_vllm()


@pytest.mark.parametrize("found", ["0.31.1", "0.34.0", "0.34.0rc1", "1.0", "dev", ""])
def test_other_versions_stop_the_start_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, found: str
) -> None:
    monkeypatch.setattr(compat, "vllm_version", lambda: found)
    with pytest.raises(compat.UnsupportedVllmError) as caught:
        compat.require_supported_vllm()
    message = str(caught.value)
    assert f"this is vLLM {found}:" in message
    assert "supports vLLM >=0.32,<0.34" in message
    assert "pip install 'vllm>=0.32,<0.34'" in message
    assert "\n" not in message


def test_the_version_is_that_of_the_vllm_that_is_imported() -> None:
    import vllm

    assert compat.vllm_version() == vllm.__version__
    compat.require_supported_vllm()


# ---------------------------------------------------------------------- names


def test_a_name_is_substituted_for_a_while() -> None:
    module = ModuleType("module")
    module.name = "vLLM's"  # type: ignore[attr-defined]
    with compat.substituted(module, "name", "ours"):
        assert module.name == "ours"
        with compat.substituted(module, "name", "within"):
            assert module.name == "within"
        assert module.name == "ours"
    assert module.name == "vLLM's"
    with pytest.raises(KeyError), compat.substituted(module, "name", "ours"):
        raise KeyError
    assert module.name == "vLLM's"


def test_building_a_scheduler_leaves_vllm_as_it_was() -> None:
    from vllm.v1.core import kv_cache_coordinator
    from vllm.v1.core.sched import scheduler

    def state() -> list[object]:
        return [
            scheduler.KVCacheManager,
            kv_cache_coordinator.BlockPool,
            kv_cache_coordinator.get_manager_for_kv_cache_spec,
        ]

    before = state()
    make_scheduler()
    with pytest.raises(ValueError):
        make_scheduler(radix={"unknown": 1})
    assert state() == before


# ---------------------------------------------------------------------- hashing


class EngineLike:
    """Does what the engine core does about hashing once it has a scheduler."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.hasher = core.get_request_block_hasher(4, hash)


@pytest.fixture(autouse=True)
def hooks() -> None:
    compat.install_engine_hooks()


def test_the_engine_gets_no_hasher_if_nobody_reads_hashes() -> None:
    scheduler = make_scheduler()
    assert scheduler.needs_block_hashes is False
    assert EngineLike(scheduler).hasher is None


@pytest.mark.parametrize(
    "options",
    [
        {"radix": {"skip_hashing": False}},
        {"kv_events": True},
        {"enable_caching": False},
        {
            "kv_transfer": KVTransferConfig(
                kv_connector="ExampleConnector",
                kv_role="kv_both",
                kv_connector_extra_config={"shared_storage_path": "/tmp/never-written"},
            )
        },
    ],
    ids=["asked for", "KV events", "vLLM's own manager", "KV connector"],
)
def test_the_engine_gets_its_hasher_if_somebody_reads_hashes(options: dict[str, Any]) -> None:
    scheduler = make_scheduler(**options)
    assert scheduler.needs_block_hashes is True
    assert callable(EngineLike(scheduler).hasher)


@pytest.mark.parametrize("scheduler_cls", [VllmScheduler, VllmAsyncScheduler])
def test_the_engine_of_another_scheduler_gets_its_hasher(scheduler_cls: Any) -> None:
    assert callable(EngineLike(make_scheduler(scheduler_cls)).hasher)


def test_whoever_else_asks_for_a_hasher_gets_it() -> None:
    assert callable(core.get_request_block_hasher(4, hash))


def test_the_hooks_are_installed_once() -> None:
    before = core.get_request_block_hasher, core.EngineCore.add_lora
    compat.install_engine_hooks()
    make_scheduler()
    assert (core.get_request_block_hasher, core.EngineCore.add_lora) == before


# ---------------------------------------------------------------------- adapters


def engine_with(scheduler: Any) -> Any:
    engine = object.__new__(core.EngineCore)
    engine.scheduler = scheduler
    engine.model_executor = SimpleNamespace(add_lora=lambda request: request.lora_int_id != 13)
    return engine


def test_the_scheduler_hears_of_an_adapter_that_is_reloaded_in_place() -> None:
    heard: list[int] = []
    engine = engine_with(SimpleNamespace(on_adapter_reloaded=heard.append))
    assert engine.add_lora(lora("a", 1)) is True
    assert engine.add_lora(lora("a", 2, load_inplace=True)) is True
    assert heard == [2]


def test_another_scheduler_is_left_alone() -> None:
    engine = engine_with(SimpleNamespace())
    assert engine.add_lora(lora("a", 1, load_inplace=True)) is True
    assert engine.add_lora(lora("a", 13, load_inplace=True)) is False
