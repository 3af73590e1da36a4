# SPDX-License-Identifier: Apache-2.0
"""``vllm-radix replay``. What takes long to import is imported when the command runs."""

import logging
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from vllm_radix.bench.quantities import MAX_TOKENS, finite
from vllm_radix.bench.replay.cost import CostModel

_TRACE = "For traces"
_COST = "Cost model"
# Enough for the table where the output is no terminal.
_WIDTH = 140


def replay(
    workload: Annotated[
        str,
        typer.Argument(
            help="batch, agents, tree-search, rag, screens or unique, with parameters as "
            "'agents:{\"sessions\": 50}', which are not those of vllm-radix ab: here workloads are "
            "token ids, and sizes count tokens; an unknown parameter lists those that there are. "
            "Or a trace: a Mooncake JSONL file, a session file of kv-cache-tester or a folder of "
            "them, JSONL with prompt and, where wanted, session, time (in seconds) and answer, or "
            "a log of Tree of Thoughts."
        ),
    ],
    scheduler: Annotated[
        list[str],
        typer.Option(
            help="stock, radix or a class as package.module.Class; repeat it to compare. With "
            'options: \'radix:{"eviction": "lfu"}\'.'
        ),
    ] = ["stock", "radix"],  # noqa: B006 - typer copies it
    capacity: Annotated[
        str,
        typer.Option(
            help="Tokens of KV cache: 60k, or several as 100k,200k. By default an eighth, a "
            "quarter and a half of what an unlimited cache would hold."
        ),
    ] = "",
    block_size: Annotated[
        int | None,
        typer.Option(
            min=1, max=MAX_TOKENS, help="Tokens in a KV block; by default the workload's."
        ),
    ] = None,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="As vLLM's option.")] = 64,
    max_num_batched_tokens: Annotated[int, typer.Option(min=1, help="As vLLM's option.")] = 8192,
    seed: Annotated[
        list[int] | None,
        typer.Option(min=0, help="Repeat it for means over several. 0 by default."),
    ] = None,
    session_ids: Annotated[
        bool, typer.Option("--session-ids", help="Send each session's name with its requests.")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write all figures here, after each run.")
    ] = None,
    png_file: Annotated[
        Path | None, typer.Option("--png", help="Plot hit rate against capacity here.")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Only so many lines, session files or problems, from the first.",
            rich_help_panel=_TRACE,
        ),
    ] = None,
    max_turns: Annotated[
        int | None,
        typer.Option(
            min=1, help="Only so many requests of each session file.", rich_help_panel=_TRACE
        ),
    ] = None,
    max_answer: Annotated[
        int | None,
        typer.Option(min=1, help="Cut answers to so many tokens.", rich_help_panel=_TRACE),
    ] = None,
    max_think: Annotated[
        float | None,
        typer.Option(
            min=0,
            callback=finite,
            help="Cut think times to so many seconds.",
            rich_help_panel=_TRACE,
        ),
    ] = None,
    speed: Annotated[
        float,
        typer.Option(
            min=0.001,
            callback=finite,
            help="Divide recorded times by this.",
            rich_help_panel=_TRACE,
        ),
    ] = 1.0,
    stagger: Annotated[
        float,
        typer.Option(
            min=0,
            callback=finite,
            help="Seconds between the starts of session files or problems.",
            rich_help_panel=_TRACE,
        ),
    ] = 0.5,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="Name or folder of the tokenizer, for traces that hold text.",
            rich_help_panel=_TRACE,
        ),
    ] = None,
    image_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MAX_TOKENS,
            help="Tokens of an image, for traces that hold images and do not tell.",
            rich_help_panel=_TRACE,
        ),
    ] = None,
    step_ms: Annotated[
        float,
        typer.Option(
            min=0.001, callback=finite, help="Milliseconds for a step.", rich_help_panel=_COST
        ),
    ] = 6.0,
    prefill_us: Annotated[
        float,
        typer.Option(
            min=0, callback=finite, help="Microseconds for a prefill token.", rich_help_panel=_COST
        ),
    ] = 40.0,
    decode_us: Annotated[
        float,
        typer.Option(
            min=0,
            callback=finite,
            help="Microseconds for a decoding sequence.",
            rich_help_panel=_COST,
        ),
    ] = 20.0,
    attention_ns: Annotated[
        float,
        typer.Option(
            min=0,
            callback=finite,
            help="Nanoseconds for each pair of a prefill token and a token of its context.",
            rich_help_panel=_COST,
        ),
    ] = 0.4,
) -> None:
    """Run vLLM's scheduler and ours on a workload in virtual time, without a model.

    Sessions are closed loops: a turn comes its think time after the last answer of the turn
    before, and contains it.
    """
    console = Console()
    if not console.is_terminal:
        console.width = _WIDTH
    # vLLM warns of what does not matter without a model.
    logging.getLogger("vllm").setLevel(logging.ERROR)
    with console.status("Loading vLLM"):
        from vllm_radix.bench.replay.main import Settings, replay_and_report
        from vllm_radix.bench.replay.traces import TraceOptions
    settings = Settings(
        workload=workload,
        schedulers=scheduler,
        capacity=capacity,
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        seeds=seed or [],
        session_ids=session_ids,
        json_file=json_file,
        png_file=png_file,
        trace=TraceOptions(
            limit, max_turns, max_answer, max_think, speed, stagger, tokenizer, image_tokens
        ),
        cost=CostModel(step_ms / 1e3, prefill_us / 1e6, decode_us / 1e6, attention_ns / 1e9),
    )
    raise typer.Exit(replay_and_report(settings, console))
