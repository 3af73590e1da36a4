# SPDX-License-Identifier: Apache-2.0
"""Bad input is told in a sentence before anything starts."""

from functools import partial
from pathlib import Path

import pytest

from vllm_radix.bench.parity import plan
from vllm_radix.bench.parity.plan import find_model, find_tasks, parse_model_args

TASK = """
task: {name}
tag: [our_tag]
dataset_path: json
output_type: generate_until
"""


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of two tasks, beside which lm-eval knows none: its own take seconds to read."""
    module = pytest.importorskip("lm_eval.tasks", reason="tasks are looked up by lm-eval")
    alone = partial(module.TaskManager, include_defaults=False)
    monkeypatch.setattr(module, "TaskManager", alone)
    for name in ("our_first", "our_second"):
        (tmp_path / f"{name}.yaml").write_text(TASK.format(name=name))
    return tmp_path


def test_lm_eval_has_to_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'vllm-radix\[eval\]'"):
        plan.require_lm_eval()


def test_a_model_is_a_folder_or_on_the_hub(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert find_model(str(tmp_path)) == str(tmp_path)
    assert find_model("owner/name") == "owner/name"
    empty = tmp_path / "empty"
    empty.mkdir()
    for missing in (str(tmp_path / "missing"), "./missing", "a/b/c", str(empty)):
        with pytest.raises(ValueError, match=r"No model in .*: name a folder with a"):
            find_model(missing)


def test_model_args_as_json() -> None:
    text = '{"dtype": "float32", "additional_config": {"radix": {"eviction": "lfu"}}}'
    assert parse_model_args(text)["additional_config"] == {"radix": {"eviction": "lfu"}}
    with pytest.raises(ValueError, match="--model-args: not valid JSON"):
        parse_model_args("{dtype: float32}")


def test_model_args_as_lm_eval_has_them() -> None:
    pytest.importorskip("lm_eval", reason="such arguments are read by lm-eval")
    assert parse_model_args("dtype=float32,max_model_len=512,enforce_eager=True") == {
        "dtype": "float32",
        "max_model_len": 512,
        "enforce_eager": True,
    }
    assert parse_model_args("") == {}
    with pytest.raises(ValueError, match="'float32' is not of the form name=value"):
        parse_model_args("float32")
    with pytest.raises(ValueError, match="leave scheduler_cls out"):
        parse_model_args("scheduler_cls=other.Scheduler")


def test_tasks_by_name_pattern_and_tag(tasks: Path) -> None:
    assert find_tasks("our_second,our_first", tasks) == ["our_second", "our_first"]
    assert find_tasks("our_f*, our_first", tasks) == ["our_first"]
    assert find_tasks("our_tag", tasks) == ["our_tag"]


def test_an_unknown_task_is_named(tasks: Path) -> None:
    with pytest.raises(ValueError, match=r"no task 'our_frist' .*: did you mean our_first"):
        find_tasks("our_frist", tasks)
    with pytest.raises(ValueError, match="no task 'xyzzy/xyzzy' in lm-eval: `lm-eval ls tasks`"):
        find_tasks("xyzzy/xyzzy", None)
    with pytest.raises(ValueError, match="name at least one task"):
        find_tasks(" , ", tasks)
    with pytest.raises(ValueError, match="--include-path: there is no folder"):
        find_tasks("our_first", tasks / "missing")
