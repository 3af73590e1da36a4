# SPDX-License-Identifier: Apache-2.0
"""Test items of GSM8K and BIG-Bench Hard from files, for machines without a model hub."""

import json
import os
from pathlib import Path

from datasets import Dataset

VARIABLE = "VLLM_RADIX_EVAL_DATA"
# Above it, a file of BIG-Bench Hard's examples says what it must not be used for.
SEPARATOR = "-----\n"


def gsm8k(**_: object) -> dict[str, Dataset]:
    """``gsm8k/train*.jsonl`` and ``gsm8k/test.jsonl`` of github.com/openai/grade-school-math."""
    folder = _folder("gsm8k")
    train = sorted(folder.glob("train*.jsonl"))
    if not train:
        raise FileNotFoundError(f"{folder} has no train.jsonl for the examples of the prompts.")
    return {"train": _lines(train[0]), "test": _lines(folder / "test.jsonl")}


def bbh(name: str, **_: object) -> dict[str, Dataset]:
    """``bbh/NAME.json`` and ``bbh/NAME.cot.txt``: from ``bbh`` and ``cot-prompts`` of
    github.com/suzgunmirac/BIG-Bench-Hard, the latter as ``NAME.txt`` there."""
    folder = _folder("bbh")
    _, _, examples = (folder / f"{name}.cot.txt").read_text().partition(SEPARATOR)
    items = json.loads((folder / f"{name}.json").read_text())["examples"]
    return {"test": Dataset.from_list([{"examples": examples.strip(), **item} for item in items])}


def _folder(name: str) -> Path:
    """Raises: ValueError or FileNotFoundError, with what to do."""
    if not (given := os.environ.get(VARIABLE)):
        raise ValueError(f"Set {VARIABLE} to the folder that holds gsm8k/ and bbh/.")
    folder = Path(given) / name
    if not folder.is_dir():
        raise FileNotFoundError(f"{VARIABLE} is {given}, which has no folder {name}.")
    return folder


def _lines(file: Path) -> Dataset:
    return Dataset.from_list([json.loads(line) for line in file.read_text().splitlines()])
