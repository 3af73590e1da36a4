# SPDX-License-Identifier: Apache-2.0
"""What the terminal shows: progress while it runs, and the table."""

from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from vllm_radix.bench.ab import stats
from vllm_radix.bench.ab.figures import METRICS, Metric
from vllm_radix.bench.ab.results import Change, Comparison, Results, Run

_STYLES = {"better": "green", "worse": "red", "higher": "", "lower": ""}


class View:
    """A live view of the results so far and of the run at hand."""

    def __init__(self, console: Console, results: Results) -> None:
        self._console = console
        self._results = results
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[state]}", markup=False),
            console=console,
        )
        self._task: TaskID | None = None
        # It gives way to the final table.
        self._live = Live(
            console=console, get_renderable=self._render, refresh_per_second=4, transient=True
        )

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._task is not None:
            self._progress.stop_task(self._task)
        if self._console.is_terminal:
            self._live.stop()

    def starting(self, arm: str, round_number: int, num_calls: int | None) -> None:
        """A server of the arm is starting."""
        label = self._label(arm, round_number)
        self._say(f"{label}: waiting for the server")
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(label, total=num_calls, state="waiting for the server")

    def answered(self, run: Run) -> None:
        """There is another answer."""
        if len(run.requests) == 1:
            self._say(f"{self._label(run.arm, run.round)}: answering")
        if self._task is not None:
            state = f"hit rate {_share(run)}"
            self._progress.update(self._task, completed=len(run.requests), state=state)

    def finished(self, results: Results) -> None:
        """Another run is in the results."""
        run = results.runs[-1]
        if run.figures is not None:
            shown = [metric for metric in METRICS if metric.key in ("hit_rate", "ttft_p50")]
            text = ", ".join(
                f"{metric.label} {metric.show(getattr(run.figures, metric.key))}"
                for metric in shown
            )
            ended = "" if run.is_complete else " (stopped)"
            self._say(
                f"{self._label(run.arm, run.round)}{ended}: {len(run.requests)} requests in "
                f"{run.duration:.1f} s, {text}"
            )

    def _label(self, arm: str, round_number: int) -> str:
        return f"round {round_number} of {self._results.rounds}, {arm}"

    def _say(self, line: str) -> None:
        """Say how it goes where nothing can be redrawn."""
        if not self._console.is_terminal:
            self._console.print(escape(line), highlight=False, soft_wrap=True)

    def _render(self) -> Group:
        parts = [table(self._results)] if self._results.runs else []
        return Group(*parts, self._progress)


def table(results: Results) -> Table:
    """A row for each figure, and for each arm its median and how it compares with the base."""
    rounds = max((len(results.complete(arm.name)) for arm in results.arms), default=0)
    title = f"{results.workload}: medians over {rounds} round{'s' if rounds != 1 else ''}"
    out = Table(title=title, title_justify="left", caption_justify="left")
    out.caption = "In brackets the lowest and the highest round."
    if len(results.arms) > 1:
        out.caption += (
            f" Against {results.base}: the mean of the rounds' ratios or differences with its 95 % "
            "confidence interval; ~ where that is inside the noise, ? where it takes more rounds "
            "to tell."
        )
    out.add_column("")
    for arm in results.arms:
        out.add_column(escape(arm.name), justify="right")
        if arm.name != results.base:
            out.add_column(f"against {escape(results.base)}", justify="right")
    for metric in stats.known(results):
        out.add_row(metric.label, *_cells(results, metric))
    if len(results.arms) > 1:
        out.add_section()
        out.add_row(f"answers as of {escape(results.arms[0].name)}", *_answer_cells(results))
    return out


def show_spread(metric: Metric, found: stats.Spread | None) -> str:
    """A median with its spread in words."""
    if found is None:
        return "-"
    text = metric.show(found.median)
    if found.low == found.high:
        return text
    return f"{text} ({metric.show_range(found.low, found.high)})"


def show_change(metric: Metric, change: Change | None) -> str:
    """A change with its interval in words."""
    if change is None or change.centre is None:
        return "-"
    text = metric.show_change(change.centre)
    if change.low is not None and change.high is not None:
        text += f" [{metric.show_change_range(change.low, change.high)}]"
    return text


def find_change(results: Results, arm: str, metric: Metric) -> Change | None:
    """How a figure of an arm compares with the base."""
    return next((c for c in results.changes if (c.arm, c.metric) == (arm, metric.key)), None)


def show_answers(comparisons: list[Comparison]) -> str:
    """How many answers were the same, in words."""
    if not comparisons:
        return "-"
    compared = sum(one.compared for one in comparisons)
    identical = sum(one.identical for one in comparisons)
    # After an answer that differs, a session goes on with other prompts.
    others = sum(one.other_prompts for one in comparisons)
    return f"{identical} of {compared}" + (f" ({others} to other prompts)" if others else "")


def _cells(results: Results, metric: Metric) -> list[str]:
    cells = []
    for arm in results.arms:
        cells.append(show_spread(metric, stats.of_arm(results, arm.name, metric)))
        if arm.name == results.base:
            continue
        change = find_change(results, arm.name, metric)
        text = show_change(metric, change)
        if change is not None:
            style = _STYLES.get(change.verdict)
            if change.verdict == "inside the noise":
                text = f"[dim]~ {escape(text)}[/]"
            elif change.verdict == "too few rounds":
                text = f"? {text}"
            else:
                text = f"[{style}]{escape(text)}[/]" if style else escape(text)
        cells.append(text)
    return cells


def _answer_cells(results: Results) -> list[str]:
    cells = []
    for number, arm in enumerate(results.arms):
        of_arm = [one for one in results.comparisons if one.arm == arm.name]
        cells.append(show_answers(of_arm) if number else "reference")
        if arm.name != results.base:
            cells.append("")
    return cells


def _share(run: Run) -> str:
    last = run.samples[-1] if run.samples else None
    return f"{last.hits / last.queries:.1%}" if last and last.queries else "-"
