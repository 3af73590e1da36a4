# SPDX-License-Identifier: Apache-2.0
"""The tasks for ``vllm-radix parity``."""

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2] / "benchmarks" / "parity"
OURS = ("radix_lists", "radix_orders", "radix_records")

tasks_module = pytest.importorskip("lm_eval.tasks", reason="tasks are loaded by lm-eval")


def load(folder: str, *names: str) -> dict[str, Any]:
    manager = tasks_module.TaskManager(include_path=str(ROOT / folder), include_defaults=False)
    found: dict[str, Any] = manager.load(list(names))["tasks"]
    return found


def prompt(task: Any, number: int) -> str:
    text: str = task.fewshot_context(task.task_docs[number], task.config.num_fewshot)
    return text


def test_our_tasks_are_alike_in_every_run() -> None:
    first, second = load("tasks", "radix_parity"), load("tasks", "radix_parity")
    assert sorted(first) == sorted(second) == sorted(OURS)
    for name, task in first.items():
        assert list(task.task_docs) == list(second[name].task_docs)


@pytest.mark.parametrize("name", OURS)
def test_items_are_many_distinct_and_follow_a_long_shared_prefix(name: str) -> None:
    task = load("tasks", name)[name]
    docs = list(task.task_docs)
    assert len({doc["text"] for doc in docs}) == len(docs) == 210
    first, second = prompt(task, 0), prompt(task, 1)
    shared = first[: first.index(docs[0]["text"])]
    assert second.startswith(shared)
    assert len(shared) > 600
    # No answer is among the examples.
    assert all(doc["text"] not in shared for doc in docs)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A question of each benchmark, in the files that they are published as."""
    monkeypatch.setenv("VLLM_RADIX_EVAL_DATA", str(tmp_path))
    (tmp_path / "gsm8k").mkdir()
    for name in ("train", "test"):
        lines = [
            json.dumps({"question": f"How much is {n} and {name}?", "answer": f"It is\n#### {n}"})
            for n in range(6)
        ]
        (tmp_path / "gsm8k" / f"{name}.jsonl").write_text("\n".join(lines))
    (tmp_path / "bbh").mkdir()
    for name in ("object_counting", "boolean_expressions"):
        examples = "a warning\n-----\nQ: How many?\nA: Let's think. So the answer is 2.\n"
        (tmp_path / "bbh" / f"{name}.cot.txt").write_text(examples)
        items = [{"input": "I have a cat. How many?", "target": "1"}]
        (tmp_path / "bbh" / f"{name}.json").write_text(json.dumps({"examples": items}))
    return tmp_path


def test_published_files_make_prompts(files: Path) -> None:
    found = load("local", "radix_local")
    gsm8k = prompt(found["local_gsm8k"], 3)
    assert gsm8k.startswith("Question: How much is 0 and train?\nAnswer: It is\n#### 0\n\n")
    assert gsm8k.endswith("#### 4\n\nQuestion: How much is 3 and test?\nAnswer:")
    for name in ("object_counting", "boolean_expressions"):
        assert prompt(found[f"local_bbh_{name}"], 0) == (
            "Q: How many?\nA: Let's think. So the answer is 2.\n\n"
            "Q: I have a cat. How many?\nA: Let's think step by step."
        )


def test_missing_files_are_named(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (files / "gsm8k" / "train.jsonl").unlink()
    with pytest.raises(FileNotFoundError, match="gsm8k has no train"):
        load("local", "local_gsm8k")
    monkeypatch.setenv("VLLM_RADIX_EVAL_DATA", str(files / "elsewhere"))
    with pytest.raises(FileNotFoundError, match="elsewhere, which has no folder gsm8k"):
        load("local", "local_gsm8k")
    monkeypatch.delenv("VLLM_RADIX_EVAL_DATA")
    with pytest.raises(ValueError, match="Set VLLM_RADIX_EVAL_DATA to the folder"):
        load("local", "local_gsm8k")
