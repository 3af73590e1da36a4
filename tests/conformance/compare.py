# SPDX-License-Identifier: Apache-2.0
"""Compare a run of vLLM's tests with the list of those that pass on stock.

Tests are named as pytest names them, relative to vLLM's ``tests/v1/core``.
"""

import ast
import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path

MAX_EXCEPTIONS = 40


class ListError(Exception):
    """A list of tests is not as it must be; the message says which line and why."""


@dataclass(frozen=True)
class Exempt:
    """A test that asserts the inside of vLLM's block pool, so that ours may fail it."""

    test: str
    reason: str
    ours: str
    """Our test of the same promise, from the top of this repository."""


@dataclass
class Comparison:
    """Every test of the list is in one of these, save those that a partial run left out."""

    same: list[str] = field(default_factory=list)
    regressions: dict[str, str] = field(default_factory=dict)
    """Test to what became of it."""
    used: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)

    def summary(self, exceptions: int) -> str:
        return (
            f"{len(self.same)} same, {len(self.regressions)} regressions, "
            f"{len(self.used)} exceptions used, {len(self.unused)} exceptions unused "
            f"({exceptions} of at most {MAX_EXCEPTIONS} lines)"
        )


def parse_passing(text: str) -> frozenset[str]:
    """The tests that a ``passing-*.txt`` names, one a line; ``#`` starts a line of comment."""
    lines = (line.strip() for line in text.splitlines())
    return frozenset(line for line in lines if line and not line.startswith("#"))


def parse_exceptions(text: str) -> list[Exempt]:
    """Read lines of ``test  # reason -> our test``.

    Raises:
        ListError: a line has no reason or no test of ours, a test is named twice, or there are
            more lines than ``MAX_EXCEPTIONS``.
    """
    found: dict[str, Exempt] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match = re.fullmatch(r"(\S.*?)\s+#\s+(\S.*?)\s+->\s+(\S+)", line.strip())
        if match is None:
            raise ListError(f"line {number} is not 'test  # reason -> our test': {line.strip()}")
        exempt = Exempt(*match.groups())
        if exempt.test in found:
            raise ListError(f"line {number} names {exempt.test} again: keep one line a test")
        found[exempt.test] = exempt
    if len(found) > MAX_EXCEPTIONS:
        raise ListError(f"{len(found)} exceptions, and at most {MAX_EXCEPTIONS} are allowed")
    return list(found.values())


def check_counterparts(exceptions: Iterable[Exempt], root: Path) -> None:
    """See that the test of ours that each exception names is there.

    Raises:
        ListError: it is not.
    """
    for exempt in exceptions:
        path, *names = exempt.ours.split("[")[0].split("::")
        file = root / path
        if not file.is_file():
            raise ListError(f"{exempt.test} names {exempt.ours}, and there is no file {path}")
        if not names or not _defines(ast.parse(file.read_text()).body, names):
            raise ListError(f"{exempt.test} names {exempt.ours}, and {path} has no such test")


def _defines(body: list[ast.stmt], names: list[str]) -> bool:
    """Whether ``body`` has a function named by the last of ``names``, in classes named before."""
    first, *rest = names
    if not rest:
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        return first.startswith("test") and any(
            isinstance(node, functions) and node.name == first for node in body
        )
    return any(
        isinstance(node, ast.ClassDef) and node.name == first and _defines(node.body, rest)
        for node in body
    )


def check_known(exceptions: Iterable[Exempt], *passing: Set[str]) -> None:
    """See that every exception is of a test that passes on some stock version.

    Raises:
        ListError: it is of none, so it excuses nothing.
    """
    for exempt in exceptions:
        if not any(exempt.test in tests for tests in passing):
            raise ListError(f"{exempt.test} passes on no stock version: remove its exception")


def compare(
    passing: Set[str],
    outcomes: Mapping[str, str],
    exceptions: Iterable[Exempt],
    partial: bool = False,
) -> Comparison:
    """Sort the tests of ``passing`` by what became of them.

    Args:
        passing: the tests that pass on stock.
        outcomes: what each test that ran came to; ``passed`` is the one that counts.
        exceptions: those that do not concern ``passing`` are left out of the count.
        partial: the run was of a part on purpose, so a test that did not run is no regression.
    """
    exempt = {e.test for e in exceptions}
    result = Comparison()
    for test in sorted(passing):
        outcome = outcomes.get(test)
        if outcome is None and partial:
            continue
        if outcome == "passed":
            (result.unused if test in exempt else result.same).append(test)
        elif test in exempt and outcome is not None:
            result.used.append(test)
        else:
            result.regressions[test] = outcome or "did not run"
    return result
