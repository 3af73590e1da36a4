# SPDX-License-Identifier: Apache-2.0
"""The pytest plugin that puts our scheduler and block manager under vLLM's tests.

``run.py`` loads it with ``-p`` and describes the run in a file that ``RADIX_CONFORMANCE`` names:
which implementation with which options, which tests, and where the results go.
"""

import functools
import importlib
import json
import os
import pkgutil
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, cast

import pytest

SUITE = "tests/v1/core/"
_job: dict[str, Any] = json.loads(Path(os.environ["RADIX_CONFORMANCE"]).read_text())
_outcomes: dict[str, str] = {}
_failures: dict[str, str] = {}
_built_in: dict[str, list[str]] = {}
# The classes of ours that the test at hand has made instances of.
_built: set[str] = set()


def replace() -> None:
    """Bind our classes to the names under which vLLM's tests look up the stock ones.

    Only there: everything of vLLM that derives from or builds a stock class is imported first and
    keeps it. So our scheduler, too, has to see to its own block manager.
    """
    from vllm.v1.core import kv_cache_manager, sched

    for module in pkgutil.iter_modules(sched.__path__):
        importlib.import_module(f"{sched.__name__}.{module.name}")
    importlib.import_module("vllm.v1.engine.core")

    from vllm.v1.core.sched import async_scheduler, scheduler

    from vllm_radix.cache.manager import RadixKVCacheManager
    from vllm_radix.config import SECTION, RadixConfig
    from vllm_radix.scheduling.scheduler import AsyncRadixScheduler, RadixScheduler

    def configure_scheduler(vllm_config: Any, *_args: Any, **_kwargs: Any) -> None:
        vllm_config.additional_config = {SECTION: _job["options"]}

    substitutes: list[tuple[Any, str, type]] = [
        (scheduler, "Scheduler", RadixScheduler),
        (async_scheduler, "AsyncScheduler", AsyncRadixScheduler),
        (kv_cache_manager, "KVCacheManager", RadixKVCacheManager),
    ]
    for module, name, ours in substitutes:
        setattr(module, name, ours)
    _on_making(RadixScheduler, configure_scheduler)
    _on_making(AsyncRadixScheduler, configure_scheduler)
    _on_making(RadixKVCacheManager, radix_config=RadixConfig(**_job["options"]))


def _on_making(cls: Any, prepare: Callable[..., None] | None = None, **defaults: Any) -> None:
    """Note that a ``cls`` is made.

    Args:
        cls: one of our classes.
        prepare: called before, with the constructor's arguments.
        defaults: arguments for the constructor where the caller gives none.
    """
    init = cls.__init__

    @functools.wraps(init)
    def noted(self: Any, *args: Any, **kwargs: Any) -> None:
        _built.add(cls.__name__)
        if prepare is not None:
            prepare(*args, **kwargs)
        init(self, *args, **{**defaults, **kwargs})

    cls.__init__ = noted


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    # Before vLLM's conftest and test modules, which import the names.
    if _job["implementation"] == "radix":
        replace()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    only = _job["only"]
    wanted: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        test = item.nodeid.removeprefix(SUITE)
        (wanted if only is None or test in only else others).append(item)
        # Their clean-up of devices and process groups, which no test here has, takes longer than
        # most of the tests.
        item.add_marker("skip_global_cleanup")
        if test in _job["exceptions"]:
            item.add_marker(pytest.mark.xfail(reason=_job["exceptions"][test], strict=False))
    items[:] = wanted
    if others:
        config.hook.pytest_deselected(items=others)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    _built.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    try:
        return (yield)
    finally:
        # Reports carry these from an xdist worker to the process that writes the results.
        item.user_properties.append(("built", sorted(_built)))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    test = report.nodeid.removeprefix(SUITE)
    if report.failed or hasattr(report, "wasxfail"):
        _outcomes[test] = "passed" if report.passed else f"{report.outcome} in {report.when}"
        if not report.passed:
            _failures[test] = report.longreprtext
    elif report.when == "call":
        _outcomes[test] = report.outcome
    elif report.skipped:
        _outcomes[test] = "skipped"
    for key, value in report.user_properties:
        if key == "built":
            _built_in[test] = cast(list[str], value)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _failures[report.nodeid.removeprefix(SUITE)] = report.longreprtext


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if hasattr(session.config, "workerinput"):
        return
    if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        # The tracebacks go with the results, and the screen keeps its summary.
        session.config.option.tbstyle = "no"
    results = {"outcomes": _outcomes, "failures": _failures, "built": _built_in}
    Path(_job["results"]).write_text(json.dumps(results))
