# SPDX-License-Identifier: Apache-2.0
"""Engines shared by the tests of one process, because each costs time to start."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest

from . import models
from .engines import Answer, Ask, Engine, Kind, assert_same


class EngineFactory(Protocol):
    def __call__(self, kind: Kind, model: Path | None = None, **args: Any) -> Engine: ...


class Comparison(Protocol):
    def __call__(
        self, asks: Sequence[Ask], arrivals: Sequence[int] | None = None, **args: Any
    ) -> list[Answer]: ...


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny random Llama."""
    return models.tiny_llama(tmp_path_factory.mktemp("tiny-llama"))


@pytest.fixture(scope="session")
def _engines() -> dict[str, Engine]:
    return {}


@pytest.fixture
def engine(tiny: Path, _engines: dict[str, Engine]) -> Iterator[EngineFactory]:
    """A function that gives the engine of a kind, model and engine arguments.

    A test gets it with an empty cache and zeroed counters. After the test no request and no block
    may be left in any engine that it used.
    """
    used: dict[str, Engine] = {}

    def get(kind: Kind, model: Path | None = None, **args: Any) -> Engine:
        key = repr((kind, model, sorted(args.items())))
        if key not in _engines:
            _engines[key] = Engine(kind, model or tiny, args)
        used[key] = _engines[key]
        return _engines[key]

    yield get
    for key, eng in used.items():
        # Forget the engine first, so that a test that broke it breaks no other.
        del _engines[key]
        eng.reset()
        _engines[key] = eng


@pytest.fixture
def compare(engine: EngineFactory) -> Comparison:
    """A function that runs the same requests on engines of all three kinds.

    The answers must be the same, and the prefix cache must be asked and must answer as on stock.
    Returns the answers of `radix`; its counters are in `engine("radix", **args).totals`. Meant for
    pools without pressure: what stock evicts is its own affair.
    """

    def run(
        asks: Sequence[Ask], arrivals: Sequence[int] | None = None, **args: Any
    ) -> list[Answer]:
        engines = {kind: engine(kind, **args) for kind in ("off", "stock", "radix")}
        answers = {kind: eng.run(asks, arrivals) for kind, eng in engines.items()}
        assert_same(answers["off"], answers["stock"])
        assert_same(answers["off"], answers["radix"])
        stock, radix = engines["stock"].totals, engines["radix"].totals
        assert (radix.requests, radix.queries) == (stock.requests, stock.queries)
        assert radix.hits == stock.hits
        assert [a.cached for a in answers["radix"]] == [a.cached for a in answers["stock"]]
        return answers["radix"]

    return run
