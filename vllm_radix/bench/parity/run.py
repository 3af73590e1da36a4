# SPDX-License-Identifier: Apache-2.0
"""Running one arm in a process of its own."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

from vllm_radix.bench.parity.results import ArmResult, Job, Outcome
from vllm_radix.bench.server import Program

_WORKER = "vllm_radix.bench.parity.worker"
# Seconds between two looks at the log, and the bytes at its end that are looked at.
_PERIOD = 0.5
_END = 4096


class Evaluation(Program):
    """The worker's process."""

    kind = "evaluation"


def run_arm(name: str, job: Job, folder: Path, show: Callable[[str], None]) -> ArmResult:
    """Run the worker to its end.

    Args:
        name: the arm's.
        job: what it is to do.
        folder: for its log, and for what it is given and gives back, which is removed.
        show: called twice a second with the last line of the log.

    Raises:
        ServerError: it failed; the message holds the end of its log.
    """
    folder.mkdir(parents=True, exist_ok=True)
    given, back = folder / f"{name}.job.json", folder / f"{name}.outcome.json"
    back.unlink(missing_ok=True)
    given.write_text(job.model_dump_json())
    command = (sys.executable, "-m", _WORKER, str(given), str(back))
    try:
        with Evaluation(command, folder / f"{name}.log") as evaluation:
            while not evaluation.has_ended():
                show(last_line(evaluation.log))
                time.sleep(_PERIOD)
        outcome = Outcome.model_validate_json(back.read_text())
    finally:
        given.unlink()
        back.unlink(missing_ok=True)
    return ArmResult(arm=name, model_args=job.model_args, **dict(outcome))


def last_line(log: Path) -> str:
    """What a log ends with; progress bars rewrite their line with a carriage return."""
    with log.open("rb") as file:
        file.seek(max(log.stat().st_size - _END, 0))
        lines = file.read().decode(errors="replace").replace("\r", "\n").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
