# SPDX-License-Identifier: Apache-2.0
"""What importing and installing the package does: next to nothing."""

import importlib
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, entry_points, version

import pytest

import vllm_radix
from vllm_radix.plugin import register


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("module", ["vllm_radix", "vllm_radix.plugin", "vllm_radix.tree"])
def test_importing_the_package_imports_neither_torch_nor_vllm(module: str) -> None:
    """vLLM loads every plugin in every one of its processes."""
    done = run(
        f"import {module}, sys\n"
        "print(*sorted(name for name in sys.modules if name in ('torch', 'vllm', 'pydantic')))"
    )
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


def test_registering_the_plugin_changes_nothing_however_often() -> None:
    from vllm.v1.core.sched import scheduler
    from vllm.v1.engine import core

    def state() -> list[object]:
        return [
            scheduler.KVCacheManager,
            core.get_request_block_hasher,
            core.EngineCore.add_lora,
            core.EngineCore.__init__,
        ]

    before = state()
    for _ in range(3):
        register()
    assert state() == before


def test_vllm_finds_the_entry_point_where_the_package_is_installed() -> None:
    try:
        installed = version("vllm-radix")
    except PackageNotFoundError:
        pytest.skip("the package is not installed here, but on the path")
    assert installed == vllm_radix.__version__
    points = entry_points(group="vllm.general_plugins", name="radix")
    assert {point.load() for point in points} == {register}
    (script,) = entry_points(group="console_scripts", name="vllm-radix")
    assert callable(script.load())


def test_the_scheduler_is_what_vllm_resolves() -> None:
    from vllm.config import SchedulerConfig

    config = SchedulerConfig(
        max_model_len=128, is_encoder_decoder=False, scheduler_cls="vllm_radix.Scheduler"
    )
    assert config.get_scheduler_cls() is vllm_radix.Scheduler


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'vllm_radix' has no attribute 'Schedular'"):
        _ = vllm_radix.Schedular
    with pytest.raises(ImportError):
        importlib.import_module("vllm_radix.nothing")
