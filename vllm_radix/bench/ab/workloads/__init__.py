# SPDX-License-Identifier: Apache-2.0
"""Closed-loop workloads: a session's turn waits for the answers to the turn before.

A workload is a subclass of :class:`~vllm_radix.bench.ab.workloads.base.Workload` in a module of
its own and a place in ``WORKLOADS``. Messages may carry any content that the OpenAI API knows, so
a workload of images needs nothing else.
"""

from pathlib import Path

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from vllm_radix.bench.ab.workloads.agents import Agents
from vllm_radix.bench.ab.workloads.base import FileWorkload, Workload
from vllm_radix.bench.ab.workloads.extraction import Extraction
from vllm_radix.bench.ab.workloads.few_shot import FewShot
from vllm_radix.bench.ab.workloads.files import Generative, Swe
from vllm_radix.bench.ab.workloads.screens import Screens
from vllm_radix.bench.ab.workloads.tree_search import TreeSearch
from vllm_radix.bench.ab.workloads.unique import Unique
from vllm_radix.bench.replay.names import parameter_error, split_options

WORKLOADS: dict[str, type[Workload]] = {
    workload.name: workload
    for workload in (Agents, Extraction, TreeSearch, FewShot, Screens, Swe, Generative, Unique)
}


def is_workload(text: str) -> bool:
    """Whether a user who gave ``text`` as a model meant a workload, with or without parameters."""
    return text.partition(":")[0] in WORKLOADS and not Path(text).exists()


def make_workload(text: str, data: Path | None) -> Workload:
    """The workload that a user named.

    Args:
        text: a name, or ``name:{"parameter": value}``.
        data: the file or folder that some workloads read.

    Raises:
        ValueError: there is no such workload, parameter or file, in one sentence.
    """
    name, given = split_options(text)
    workload = WORKLOADS.get(name)
    if workload is None:
        raise ValueError(f"There is no workload {name!r}: give one of {', '.join(WORKLOADS)}.")
    if issubclass(workload, FileWorkload):
        if data is None:
            raise ValueError(f"{name} reads recorded texts: name their file with --data.")
        if not data.exists():
            raise ValueError(f"--data: there is no {data}.")
        given["path"] = data
    elif data is not None:
        raise ValueError(f"{name} makes its own texts: leave --data out.")
    try:
        return workload.model_validate(given)
    except ValidationError as error:
        raise parameter_error(name, error, given, parameters(workload)) from None


def parameters(workload: type[Workload]) -> dict[str, FieldInfo]:
    """What may follow the workload's name; a file is an option of its own."""
    return {name: field for name, field in workload.model_fields.items() if name != "path"}
