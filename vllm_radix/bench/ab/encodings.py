# SPDX-License-Identifier: Apache-2.0
"""How many images a server has encoded. Of all that vLLM tells, only its log says that."""

import os
import re
from pathlib import Path

FLAG = "--enable-logging-iteration-details"
"""Makes a server log each of its steps, with what the encoder was given if it was given any."""
_LEVEL = "VLLM_LOGGING_LEVEL"
_STEP = re.compile(rb"Iteration\(\d+\): .*")
_ENCODED = re.compile(rb"encoder inputs: (\d+)")


def environment() -> dict[str, str]:
    """What a server's environment needs for these lines, which are of the level INFO."""
    return {} if os.environ.get(_LEVEL, "").upper() == "DEBUG" else {_LEVEL: "INFO"}


class EncodingCounter:
    """Counts the images that are encoded from when it is made on.

    Args:
        log: the server's, which may go on growing.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._start = log.stat().st_size

    def count(self) -> int | None:
        """How many until now; None if the log tells nothing of any step."""
        with self._log.open("rb") as log:
            log.seek(self._start)
            steps = _STEP.findall(log.read())
        found = [_ENCODED.search(step) for step in steps]
        return sum(int(one[1]) for one in found if one is not None) if steps else None
