# SPDX-License-Identifier: Apache-2.0
"""Engines shared by the tests of one process, because each costs time to start."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pytest

from . import models
from .engines import KINDS, Answer, Ask, Engine, Kind, assert_same
from .kernels import skip_without_vllm_for_cpu


class EngineFactory(Protocol):
    def __call__(self, kind: Kind, model: Path | None = None, **args: Any) -> Engine: ...


class Comparison(Protocol):
    def __call__(
        self, asks: Sequence[Ask], arrivals: Sequence[int] | None = None, **args: Any
    ) -> dict[Kind, list[Answer]]: ...


@pytest.fixture(scope="session", autouse=True)
def _needs_vllm_for_cpu() -> None:
    skip_without_vllm_for_cpu("run engines")


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


@pytest.fixture(params=["blocks", "radix"])
def ours(request: pytest.FixtureRequest) -> Kind:
    """Our cache, reusing whole blocks and reusing every token."""
    kind: Kind = request.param
    return kind


@pytest.fixture
def compare(engine: EngineFactory) -> Comparison:
    """A function that runs the same requests on engines of all kinds and returns their answers.

    The answers must be the same. On the tree, reusing whole blocks, the prefix cache must be asked
    and must answer as on stock; reusing every token, it must find no less. Meant for pools without
    pressure: what stock evicts is its own affair. Where prompts are prefilled side by side in small
    chunks, who shares one waits for it with us, so that we find more.
    """

    def run(
        asks: Sequence[Ask], arrivals: Sequence[int] | None = None, **args: Any
    ) -> dict[Kind, list[Answer]]:
        engines = {kind: engine(kind, **args) for kind in KINDS}
        before = {kind: replace(eng.totals) for kind, eng in engines.items()}
        answers = {kind: eng.run(asks, arrivals) for kind, eng in engines.items()}

        def counted(kind: Kind) -> tuple[int, int, int]:
            new, old = engines[kind].totals, before[kind]
            return new.requests - old.requests, new.queries - old.queries, new.hits - old.hits

        for kind in ("stock", "blocks", "radix"):
            assert_same(answers["off"], answers[kind])
        assert counted("blocks")[:2] == counted("radix")[:2] == counted("stock")[:2]
        if "long_prefill_token_threshold" in args:
            assert counted("radix")[2] >= counted("blocks")[2] >= counted("stock")[2]
        else:
            assert cached(answers["blocks"]) == cached(answers["stock"])
            assert counted("blocks") == counted("stock")
            pairs = zip(cached(answers["radix"]), cached(answers["blocks"]), strict=True)
            assert all(fine >= coarse for fine, coarse in pairs)
        if all(ask.n == 1 for ask in asks):
            assert counted("radix")[2] == sum(cached(answers["radix"]))
        return answers

    return run


def cached(answers: Sequence[Answer]) -> list[int]:
    """For each answer, how much of its prompt was read from the cache, in tokens."""
    return [a.cached or 0 for a in answers]
