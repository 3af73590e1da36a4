# SPDX-License-Identifier: Apache-2.0
"""How a command ends, and how it says why."""

from rich.console import Console
from rich.markup import escape

FAILED = 1
INTERRUPTED = 130


def complain(console: Console, text: str) -> None:
    """Print the end of a log, if there is one, and what it means."""
    *log, sentence = text.splitlines()
    for line in log:
        console.print(f"  {escape(line)}", style="dim", highlight=False, soft_wrap=True)
    console.print(f"[red]{escape(sentence)}[/]", highlight=False, soft_wrap=True)
