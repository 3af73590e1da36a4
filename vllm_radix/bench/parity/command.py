# SPDX-License-Identifier: Apache-2.0
"""``vllm-radix parity``. What takes long to import is imported when the command runs."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from vllm_radix.bench.quantities import finite

_ENGINE = "Engine"
# Enough for the tables where the output is no terminal.
_WIDTH = 160


def parity(
    model: Annotated[str, typer.Argument(help="A folder, or a model of the hub.")],
    tasks: Annotated[
        str,
        typer.Option(
            help="Tasks, groups or tags of lm-eval, separated by commas; * stands for any "
            "characters. Only generate_until tasks show anything."
        ),
    ] = "gsm8k",
    include_path: Annotated[
        Path | None, typer.Option(help="A folder with YAML files of more tasks.")
    ] = None,
    limit: Annotated[
        float | None,
        typer.Option(
            min=0,
            callback=finite,
            help="Samples of each task, or below 1 their share; all if left out.",
        ),
    ] = None,
    num_fewshot: Annotated[
        int | None,
        typer.Option(min=0, help="Examples in each prompt; what the task says if left out."),
    ] = None,
    apply_chat_template: Annotated[
        bool, typer.Option("--apply-chat-template", help="Put the prompts into the model's own.")
    ] = False,
    model_args: Annotated[
        str,
        typer.Option(
            help="Arguments of vLLM's LLM, as dtype=float32,max_model_len=4096 or as JSON.",
            rich_help_panel=_ENGINE,
        ),
    ] = "",
    stress: Annotated[
        bool,
        typer.Option(
            "--stress",
            help="Chunks of 64 tokens, 32 requests at once, and a KV pool with room for two of "
            "max_model_len, so that requests are preempted and blocks evicted.",
            rich_help_panel=_ENGINE,
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="A new folder for results.json and logs; parity-DATE-TIME if left out."),
    ] = None,
) -> None:
    """Check that a model's answers to lm-eval's tasks are the same with the radix tree.

    The tasks run without a prefix cache, with vLLM's own, and with the tree, one after the other
    and decoding greedily. The exit status is 0 only if the tree was used and its answers differ
    from those without a cache no more than those with vLLM's cache do.

    vllm-radix parity MODEL --tasks gsm8k --limit 200 --model-args max_model_len=4096
    """
    console = Console()
    if not console.is_terminal:
        console.width = _WIDTH
    with console.status("Loading"):
        from vllm_radix.bench.parity.main import run_and_report
        from vllm_radix.bench.parity.plan import Settings
    settings = Settings(
        model=model,
        tasks=tasks,
        include_path=include_path,
        limit=limit,
        num_fewshot=num_fewshot,
        apply_chat_template=apply_chat_template,
        model_args=model_args,
        stress=stress,
        out=out,
    )
    raise typer.Exit(run_and_report(settings, console))
