# SPDX-License-Identifier: Apache-2.0
"""The workloads and their parameters, for people who choose between them."""

import json

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from vllm_radix.bench.ab.workloads import WORKLOADS, parameters
from vllm_radix.bench.ab.workloads.base import Workload


def catalogue() -> Group:
    """A heading and a table for each workload."""
    parts: list[RenderableType] = []
    for workload in WORKLOADS.values():
        parts += [Text(f"{workload.name}: {workload.about}", style="bold"), _table(workload)]
    return Group(*parts)


def _table(workload: type[Workload]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 2))
    for column in ("parameter", "default", ""):
        table.add_column(column)
    for name, field in parameters(workload).items():
        table.add_row(name, escape(json.dumps(field.default)), escape(field.description or ""))
    table.add_row()
    return table
