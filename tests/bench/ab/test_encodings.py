# SPDX-License-Identifier: Apache-2.0
"""A log tells how many images are encoded."""

from pathlib import Path

import pytest

from vllm_radix.bench.ab.encodings import EncodingCounter, environment

STEP = "(APIServer pid=1) INFO [loggers.py:199] Engine 000: Iteration(7): 1 context requests"


def test_only_what_comes_later_counts(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(f"{STEP}, encoder inputs: 5, encoder output embeddings: 80\n")
    counter = EncodingCounter(log)
    assert counter.count() is None
    with log.open("ab") as file:
        # A prompt, say, of which the log may hold anything.
        file.write(b"prompt: 'encoder inputs: 9', \xff\n")
        file.flush()
        assert counter.count() is None
        file.write(f"{STEP}, KV cache usage: 8.4%\n".encode())
        file.flush()
        assert counter.count() == 0
        file.write(f"{STEP}, encoder inputs: 2, encoder output embeddings: 80\n".encode())
        file.write(f"{STEP}, encoder inputs: 13, encoder output embeddings: 9\n".encode())
    assert counter.count() == 15


@pytest.mark.parametrize(
    ("level", "expected"),
    [(None, "INFO"), ("WARNING", "INFO"), ("info", "INFO"), ("debug", "debug")],
)
def test_steps_are_logged_at_every_level(
    monkeypatch: pytest.MonkeyPatch, level: str | None, expected: str
) -> None:
    monkeypatch.delenv("VLLM_LOGGING_LEVEL", raising=False)
    if level is not None:
        monkeypatch.setenv("VLLM_LOGGING_LEVEL", level)
    assert {"VLLM_LOGGING_LEVEL": level, **environment()} == {"VLLM_LOGGING_LEVEL": expected}
