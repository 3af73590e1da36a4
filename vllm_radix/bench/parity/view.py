# SPDX-License-Identifier: Apache-2.0
"""The outcome on the console."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from vllm_radix.bench.parity.results import ArmResult, Comparison, Results

_NO_EVIDENCE = "*"
_WHY_NO_EVIDENCE = (
    f"{_NO_EVIDENCE} scored by the logprobs of its prompts, for which vLLM does not read the "
    "prefix cache: no evidence."
)


def show(console: Console, results: Results) -> None:
    """Print what there is: the metrics, the counts, every difference, the judgement."""
    if not results.arms:
        return
    console.print(metrics_table(results))
    if any(not task.generates for task in results.arms[0].tasks.values()):
        console.print(_WHY_NO_EVIDENCE, highlight=False)
    console.print(counts_table(results))
    for comparison in results.comparisons:
        if comparison.differences:
            console.print(differences_table(comparison, results.arms[0].arm))
    if results.failures is None:
        return
    for failure in results.failures:
        console.print(f"[red]{escape(failure)}[/]", highlight=False, soft_wrap=True)
    if not results.failures:
        _, radix = results.comparisons
        console.print(
            f"[green]Parity: of {radix.compared} generated answers {radix.different} differ from "
            "those without a cache, no more than with vLLM's cache.[/]",
            highlight=False,
            soft_wrap=True,
        )


def metrics_table(results: Results) -> Table:
    """A row for each task and metric, a column for each arm."""
    table = Table(title="Metrics", title_justify="left")
    table.add_column("task")
    table.add_column("samples", justify="right")
    table.add_column("metric")
    for arm in results.arms:
        table.add_column(arm.arm, justify="right")
    first = results.arms[0]
    for name, task in first.tasks.items():
        for metric in task.metrics:
            values = (arm.tasks[name].metrics[metric] for arm in results.arms)
            table.add_row(
                escape(name if task.generates else f"{name} {_NO_EVIDENCE}"),
                str(len(task.samples)),
                escape(metric),
                *(f"{value:.4f}" for value in values),
            )
    return table


def counts_table(results: Results) -> Table:
    """A row for each arm: what the cache did, and how many answers differ."""
    table = Table(title="Generated answers", title_justify="left")
    names = ("answers", "differ", "hit rate", "hits, in tokens", "preemptions", "recycled blocks")
    table.add_column("arm")
    for name in (*names, "seconds"):
        table.add_column(name, justify="right")
    different = {comparison.arm: comparison for comparison in results.comparisons}
    for arm in results.arms:
        table.add_row(*_counts(arm, different.get(arm.arm)))
    return table


def differences_table(comparison: Comparison, reference: str) -> Table:
    """A row for each sample that differs."""
    table = Table(
        title=f"{comparison.arm}: samples that differ from {reference}", title_justify="left"
    )
    for name in ("task", "sample", "at character", reference, comparison.arm):
        table.add_column(name, overflow="fold")
    for one in comparison.differences:
        table.add_row(
            escape(one.task if one.is_evidence else f"{one.task} {_NO_EVIDENCE}"),
            str(one.doc_id),
            str(one.position),
            Text(repr(one.reference)),
            Text(repr(one.answer)),
        )
    return table


def _counts(arm: ArmResult, comparison: Comparison | None) -> list[str]:
    counts = arm.counts
    return [
        arm.arm,
        str(arm.num_generated),
        "-" if comparison is None else str(comparison.different),
        f"{counts.hit_rate:.3f}" if counts.queries else "-",
        str(counts.hits),
        str(counts.preemptions),
        "-" if counts.recycled_blocks is None else str(counts.recycled_blocks),
        f"{arm.seconds:.0f}",
    ]
