# SPDX-License-Identifier: Apache-2.0
"""What the user asked for, checked before any engine starts."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path

from vllm_radix.bench.parity.arms import ModelArgs, check_model_args

_PATH_STARTS = (os.sep, ".", "~")


@dataclass(frozen=True)
class Settings:
    """What a user gave on the command line; see the command's help."""

    model: str
    tasks: str
    include_path: Path | None
    limit: float | None
    num_fewshot: int | None
    apply_chat_template: bool
    model_args: str
    stress: bool
    out: Path | None


def require_lm_eval() -> None:
    """Return if lm-eval can be imported.

    Raises:
        ValueError: it is not installed.
    """
    if find_spec("lm_eval") is None:
        raise ValueError("Tasks are run by lm-eval: pip install 'vllm-radix[eval]'.")


def find_model(model: str) -> str:
    """The model as vLLM wants it: a folder, or the name of one on the hub.

    Raises:
        ValueError: it looks like a folder, and there is none that holds a model.
    """
    path = Path(model).expanduser()
    if not path.exists() and not model.startswith(_PATH_STARTS) and model.count("/") <= 1:
        return model
    if not (path / "config.json").is_file():
        raise ValueError(
            f"No model in {model}: name a folder with a config.json, or a model of the hub."
        )
    return str(path)


def parse_model_args(text: str) -> ModelArgs:
    """Arguments of lm-eval's ``vllm`` backend, from JSON or from ``name=value,name=value``.

    Raises:
        ValueError: it is neither, or the arms cannot be made of it.
    """
    if text.lstrip().startswith("{"):
        try:
            model_args: ModelArgs = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"--model-args: not valid JSON ({error}).") from None
    else:
        from lm_eval.utils import simple_parse_args_string

        if wrong := next((pair for pair in text.split(",") if pair and "=" not in pair), None):
            raise ValueError(f"--model-args: {wrong!r} is not of the form name=value.")
        model_args = simple_parse_args_string(text)
    check_model_args(model_args)
    return model_args


def find_tasks(names: str, include_path: Path | None) -> list[str]:
    """The tasks, groups and tags that lm-eval knows by these names or patterns.

    Args:
        names: separated by commas, with ``*`` for any characters.
        include_path: a folder of the user's own YAML files.

    Raises:
        ValueError: lm-eval knows none by a name, or there is no such folder.
    """
    if include_path is not None and not include_path.is_dir():
        raise ValueError(f"--include-path: there is no folder {include_path}.")
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=None if include_path is None else str(include_path))
    found: dict[str, None] = {}
    for name in filter(None, map(str.strip, names.split(","))):
        matches: Sequence[str] = manager.match_tasks([name])
        if not matches:
            raise ValueError(_unknown(name, manager.all_tasks, include_path))
        found |= dict.fromkeys(matches)
    if not found:
        raise ValueError("--tasks: name at least one task.")
    return list(found)


def _unknown(name: str, known: Sequence[str], include_path: Path | None) -> str:
    near = get_close_matches(name, known, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else "`lm-eval ls tasks` lists its own."
    where = f" or in {include_path}" if include_path is not None else ""
    return f"There is no task {name!r} in lm-eval{where}: {hint}"
