# SPDX-License-Identifier: Apache-2.0
"""``vllm-radix ab``. What takes long to import is imported when the command runs."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from vllm_radix.bench.quantities import finite

_SERVERS = "Servers"
_LOAD = "What they are asked"
# Enough for the table where the output is no terminal.
_WIDTH = 160


def _console() -> Console:
    console = Console()
    if not console.is_terminal:
        console.width = _WIDTH
    return console


def _list_workloads(asked: bool) -> None:
    if asked:
        from vllm_radix.bench.ab.catalogue import catalogue

        _console().print(catalogue())
        raise typer.Exit


def ab(
    serve: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- MODEL FLAGS",
            help="What vllm serve is given for every arm that is started; the -- keeps its flags "
            "apart from those of this command.",
        ),
    ] = None,
    arm: Annotated[
        list[str],
        typer.Option(
            help="no-cache, stock or radix; NAME=URL for a running server; NAME='FLAGS' for one "
            "with flags of its own beside the shared ones. Repeat it. Answers are compared with "
            "the first arm's.",
            rich_help_panel=_SERVERS,
        ),
    ] = ["no-cache", "stock", "radix"],  # noqa: B006 - typer copies it
    base: Annotated[
        str | None,
        typer.Option(
            help="The arm that figures are compared with; by default stock, or else the first.",
            rich_help_panel=_SERVERS,
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65535,
            help="Of started servers; a free one if left out.",
            rich_help_panel=_SERVERS,
        ),
    ] = None,
    start_timeout: Annotated[
        float,
        typer.Option(
            min=1,
            callback=finite,
            help="Seconds until a server must be ready.",
            rich_help_panel=_SERVERS,
        ),
    ] = 1200.0,
    workload: Annotated[
        str | None,
        typer.Option(
            help="agents (the default), extraction, tree-search, few-shot, screens, swe, "
            "generative or unique, with parameters as 'agents:{\"num_sessions\": 50}', which are "
            "not those of vllm-radix replay: here requests are texts, with images for screens, and "
            "sizes count words; --list-workloads lists them all.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    list_workloads: Annotated[
        bool,
        typer.Option(
            "--list-workloads",
            is_eager=True,
            callback=_list_workloads,
            help="Print all workloads and their parameters, and end.",
            rich_help_panel=_LOAD,
        ),
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(
            help="For swe, a folder of recorded sessions: JSONL of timestamp, input, session_id. "
            "For generative, a JSONL file of prompt.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    concurrency: Annotated[
        int, typer.Option(min=1, max=1000, help="Sessions held at once.", rich_help_panel=_LOAD)
    ] = 100,
    ignore_eos: Annotated[
        bool,
        typer.Option(
            "--ignore-eos",
            help="Let all answers have their full length, so that all arms generate alike.",
            rich_help_panel=_LOAD,
        ),
    ] = False,
    session_ids: Annotated[
        bool,
        typer.Option(
            "--session-ids",
            help="Send each session's name with its requests, as vLLM's session_id.",
            rich_help_panel=_LOAD,
        ),
    ] = False,
    open_loop: Annotated[
        str | None,
        typer.Option(
            help="Flags of vllm bench serve, in one string: it sends the requests, at a rate of "
            "their own.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    request_timeout: Annotated[
        float,
        typer.Option(
            min=1,
            callback=finite,
            help="Seconds without a sign of the server until a request fails.",
            rich_help_panel=_LOAD,
        ),
    ] = 600.0,
    rounds: Annotated[
        int, typer.Option(min=1, help="Runs of each arm; with fewer than 3, little can be told.")
    ] = 3,
    seed: Annotated[
        int, typer.Option(min=0, help="Of the first round; each next has the next.")
    ] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="A new folder for results.json, report.html and logs; ab-DATE-TIME if left out."
        ),
    ] = None,
) -> None:
    """Serve a model in several ways, ask all of them the same, and say what differs.

    By default three ways: without a prefix cache, with vLLM's own, and with the radix tree. Each
    is started anew for each run, one after the other, so that they have the machine to themselves;
    a running server's cache is reset instead, if it was started with VLLM_SERVER_DEV_MODE=1.

    vllm-radix ab --workload agents -- MODEL --max-model-len 16384
    """
    console = _console()
    with console.status("Loading"):
        from vllm_radix.bench.ab.main import Settings, run_and_report
    settings = Settings(
        workload=workload,
        serve=serve or [],
        arms=arm,
        base=base,
        rounds=rounds,
        seed=seed,
        data=data,
        concurrency=concurrency,
        ignore_eos=ignore_eos,
        session_ids=session_ids,
        open_loop=open_loop,
        out=out,
        port=port,
        start_timeout=start_timeout,
        request_timeout=request_timeout,
    )
    raise typer.Exit(run_and_report(settings, console))
