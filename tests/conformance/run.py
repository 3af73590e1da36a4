# SPDX-License-Identifier: Apache-2.0
"""Run vLLM's own tests of its scheduler, ``tests/v1/core``, on ours, and compare with stock.

    python tests/conformance/run.py --vllm 0.32.0

The tests come from vLLM's source distribution on PyPI; everything fetched or made is kept under
``.cache/conformance``. The interpreter must have vLLM's dependencies and the development tools.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import compare
import hub
from sources import (
    CACHE,
    TEST_TOOLS,
    ConformanceError,
    install,
    installed_versions,
    source_distribution,
    unpack,
    vllm_without_kernels,
    works,
)

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SUITE = "tests/v1/core"
# A test of vLLM that has not ended after this many seconds hangs: the slowest takes about 30.
TIMEOUT = 600


def main() -> int:
    args = parse_arguments()
    try:
        check_interpreter()
        exceptions = read_exceptions()
        passing = None if args.remake_baseline else read_passing(args.vllm)
        suite = Suite(args.vllm)
        if passing is None:
            return remake(suite, args.n, args.pytest)
        return judge(suite, passing, exceptions, args)
    except (ConformanceError, compare.ListError) as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("conformance: interrupted", file=sys.stderr)
        return 130


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=f"Run vLLM's {SUITE} on our scheduler and block manager; compare with stock."
    )
    parser.add_argument("--vllm", default="0.32.0", metavar="VERSION", help="default: %(default)s")
    parser.add_argument(
        "--implementation",
        choices=("radix", "stock"),
        default="radix",
        help="what to run the tests on (stock: to see that the machine itself gives the list)",
    )
    parser.add_argument(
        "--options",
        type=json.loads,
        # Stock reuses whole blocks in the order of arrival, and its tests count them.
        default={"token_granular": False, "schedule": "fcfs"},
        metavar="JSON",
        help="options of ours, as --additional-config has them under 'radix', instead of "
        """'{"token_granular": false, "schedule": "fcfs"}', which is what stock's tests count on""",
    )
    parser.add_argument(
        "--remake-baseline",
        action="store_true",
        help="run every test on stock, twice, and write the list of those that passed both times: "
        "what wants a network, a GPU or model weights, and what is flaky, stays out of it",
    )
    parser.add_argument("-n", type=int, default=2, metavar="PROCESSES", help="default: %(default)s")
    parser.add_argument(
        "pytest",
        nargs="*",
        metavar="-- PYTEST_ARGUMENT",
        help="further arguments for pytest, such as -k; tests that do not run are then not missed",
    )
    return parser.parse_args()


def check_interpreter() -> None:
    wanted = ("torch", "transformers", "pip", "pytest", "xdist", "pytest_timeout")
    missing = [name for name in wanted if importlib.util.find_spec(name) is None]
    if missing:
        raise ConformanceError(
            f"{sys.executable} has no {', '.join(missing)}: run `make setup`, and then this with "
            ".venv/bin/python"
        )


def baseline(version: str) -> Path:
    return HERE / f"passing-{version}.txt"


def read_passing(version: str) -> frozenset[str]:
    path = baseline(version)
    if not path.exists():
        known = ", ".join(sorted(p.stem.removeprefix("passing-") for p in HERE.glob("passing-*")))
        raise ConformanceError(
            f"there is no list of tests for vLLM {version} (there is for {known or 'none'}): "
            "--remake-baseline makes it"
        )
    return compare.parse_passing(path.read_text())


def read_exceptions() -> list[compare.Exempt]:
    path = HERE / "exceptions.txt"
    try:
        exceptions = compare.parse_exceptions(path.read_text())
        compare.check_counterparts(exceptions, ROOT)
        lists = HERE.glob("passing-*.txt")
        compare.check_known(exceptions, *(compare.parse_passing(p.read_text()) for p in lists))
    except compare.ListError as error:
        raise ConformanceError(f"{path.relative_to(ROOT)}: {error}") from None
    return exceptions


class Suite:
    """vLLM's tests of one version, unpacked, and the environment to run them in."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.folder = CACHE / version
        self.tree = self.folder / "tree"
        if not self.tree.exists():
            unpack(source_distribution(version), self.tree)
        # The tests see this checkout's code, whatever else is installed.
        for name, target in (("vllm_radix", ROOT / "vllm_radix"), ("conformance", HERE)):
            link = self.tree / name
            if not link.is_symlink() or link.readlink() != target:
                link.unlink(missing_ok=True)
                link.symlink_to(target)
        hub.write(CACHE / "hub")
        self.environment = self._environment()

    def _environment(self) -> dict[str, str]:
        path = [self.tree, install(CACHE / "test-tools", TEST_TOOLS)]
        environment = {
            "HF_HUB_CACHE": str(CACHE / "hub"),
            "HF_HUB_OFFLINE": "1",
            # vLLM keeps what it learns of a model class there.
            "VLLM_CACHE_ROOT": str(self.folder / "vllm-cache"),
            "VLLM_NO_USAGE_STATS": "1",
            # The tests compute next to nothing, and run in several processes.
            "OMP_NUM_THREADS": "1",
        }
        if self.version not in installed_versions():
            path.append(vllm_without_kernels(self.version))
            environment["VLLM_TARGET_DEVICE"] = "cpu"
        if not works("import torchvision.transforms.v2.functional"):
            path.append(HERE / "standin")
        environment["PYTHONPATH"] = os.pathsep.join(map(str, path))
        return environment

    def run(
        self,
        implementation: str,
        only: Sequence[str] | None,
        exceptions: Mapping[str, str],
        processes: int,
        arguments: Sequence[str],
        options: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Run the tests, pytest's output passing through.

        Args:
            implementation: ``radix`` or ``stock``.
            only: the tests to run, or None for all.
            exceptions: tests expected to fail, and why.
            processes: how many of pytest-xdist's; 0 runs them in pytest's own.
            arguments: further ones for pytest.
            options: of our classes.

        Returns:
            ``outcomes``, ``failures`` and ``built``, each by test.
        """
        results = self.folder / f"results-{implementation}.json"
        results.unlink(missing_ok=True)
        job = self.folder / f"job-{implementation}.json"
        job.write_text(
            json.dumps(
                {
                    "implementation": implementation,
                    "options": options or {},
                    "only": only,
                    "exceptions": dict(exceptions),
                    "results": str(results),
                }
            )
        )
        if only is None:
            paths = [SUITE]
        else:
            paths = sorted({f"{SUITE}/{test.split('::')[0]}" for test in only})
        gone = [path for path in paths if not (self.tree / path).exists()]
        if gone:
            raise ConformanceError(
                f"vLLM {self.version} has no {gone[0]}: remake the list with --remake-baseline"
            )
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-p", "conformance.plugin"),
            *("-p", "no:cacheprovider", "--disable-warnings", "--tb=short", "-rN"),
            *("-n", str(processes), "--dist", "worksteal", "--timeout", str(TIMEOUT)),
            *paths,
            *arguments,
        ]
        print(f"vLLM {self.version}, {SUITE}, {implementation}", flush=True)
        environment = {**os.environ, **self.environment, "RADIX_CONFORMANCE": str(job)}
        code = subprocess.run(command, cwd=self.tree, env=environment, check=False).returncode
        if code == 2:
            raise KeyboardInterrupt
        # 0 and 1: the tests ran to their end; what they came to is ours to judge.
        if code not in (0, 1) or not results.exists():
            raise ConformanceError(
                f"pytest ended with {code} before it had run the tests: see above"
            )
        outcome: dict[str, Any] = json.loads(results.read_text())
        failures = self.folder / f"failures-{implementation}.txt"
        failures.write_text(
            "\n\n".join(f"=== {test}\n{text}" for test, text in outcome["failures"].items())
        )
        return outcome


def judge(
    suite: Suite,
    passing: frozenset[str],
    exceptions: list[compare.Exempt],
    args: argparse.Namespace,
) -> int:
    """Run the tests that pass on stock, print what differs, return the exit status."""
    radix = args.implementation == "radix"
    allowed = exceptions if radix else []
    reasons = {e.test: e.reason for e in allowed}
    outcome = suite.run(
        args.implementation, sorted(passing), reasons, args.n, args.pytest, args.options
    )
    result = compare.compare(passing, outcome["outcomes"], allowed, partial=bool(args.pytest))
    print()
    for test, what in result.regressions.items():
        print(f"regression: {test}\n    {what}{last_line(outcome['failures'].get(test))}")
    for test in result.unused:
        print(f"exception not needed for vLLM {suite.version}: {test}")
    if radix:
        built = [name for names in outcome["built"].values() for name in names]
        counts = {name: built.count(name) for name in sorted(set(built))}
        print("tests that made one:", ", ".join(f"{k} {v}" for k, v in counts.items()) or "none")
        if not args.pytest and not {"RadixScheduler", "RadixKVCacheManager"} <= set(counts):
            raise ConformanceError("the tests did not run on our classes: see plugin.py")
    print(f"conformance with vLLM {suite.version}: {result.summary(len(exceptions))}")
    if result.regressions:
        print(f"Tracebacks: {suite.folder / f'failures-{args.implementation}.txt'}")
    return 1 if result.regressions else 0


def last_line(failure: str | None) -> str:
    """The line of a failure's text that says what went wrong, to be put after its outcome."""
    lines = [line for line in (failure or "").splitlines() if line.startswith("E  ")]
    return f": {lines[0][1:].strip()[:300]}" if lines else ""


def remake(suite: Suite, processes: int, arguments: Sequence[str]) -> int:
    if arguments:
        raise ConformanceError("a list is made of the whole suite: leave out the pytest arguments")
    runs = []
    for _ in range(2):
        outcomes = suite.run("stock", None, {}, processes, ())["outcomes"]
        runs.append({test for test, outcome in outcomes.items() if outcome == "passed"})
    both = runs[0] & runs[1]
    path = baseline(suite.version)
    path.write_text("".join(f"{test}\n" for test in sorted(both)))
    flaky = sorted(runs[0] ^ runs[1])
    for test in flaky:
        print(f"passed once of two times, left out: {test}")
    print(f"{path.relative_to(ROOT)}: {len(both)} of {len(outcomes)} tests pass on stock")
    return 0


if __name__ == "__main__":
    sys.exit(main())
