# SPDX-License-Identifier: Apache-2.0
"""The command ``vllm-radix``."""

from typing import Annotated, Literal, get_args, get_origin

import typer
from rich.console import Console
from rich.table import Table

from vllm_radix import __version__, compat
from vllm_radix.bench.ab.command import ab
from vllm_radix.bench.parity.command import parity
from vllm_radix.bench.replay.command import replay
from vllm_radix.config import SECTION, RadixConfig

app = typer.Typer(no_args_is_help=True, add_completion=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"vllm-radix {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """A radix-tree prefix cache for vLLM: vllm serve MODEL --scheduler-cls vllm_radix.Scheduler."""


@app.command()
def info() -> None:
    """Show versions, whether this vLLM is supported, and the options with their defaults."""
    console = Console()
    console.print(f"vllm-radix {__version__}, for vLLM {compat.SUPPORTED_VLLM}", highlight=False)
    try:
        compat.require_supported_vllm()
    except compat.UnsupportedVllmError as error:
        console.print(f"[red]{error}[/]", highlight=False)
        raise typer.Exit(1) from None
    console.print(f"vLLM {compat.vllm_version()} is installed: supported", highlight=False)
    table = Table(title=f"--additional-config '{{\"{SECTION}\": {{...}}}}'", title_justify="left")
    table.add_column("option", no_wrap=True)
    table.add_column("default", no_wrap=True)
    table.add_column("meaning")
    for name, field in RadixConfig.model_fields.items():
        meaning = str(field.description)
        if get_origin(field.annotation) is Literal:
            meaning += f" One of {', '.join(get_args(field.annotation))}."
        table.add_row(name, str(field.default), meaning)
    console.print(table)


app.command()(replay)
app.command()(ab)
app.command()(parity)
