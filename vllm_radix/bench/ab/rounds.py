# SPDX-License-Identifier: Apache-2.0
"""Every arm in every round, one after the other.

Each round has a seed of its own, the same for all arms, and begins with another arm: what the
machine does over time hits all of them. An arm's server is started for each of its runs, with
nothing cached; a running server's cache is reset, where it allows that.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from vllm_radix.bench.ab import compare, stats
from vllm_radix.bench.ab.arms import Arm, Endpoint, Stage
from vllm_radix.bench.ab.client import Answer
from vllm_radix.bench.ab.compare import CallId
from vllm_radix.bench.ab.drive import OnAnswer
from vllm_radix.bench.ab.figures import figures
from vllm_radix.bench.ab.results import Results, Run


class Load(Protocol):
    """What is done with a server."""

    def num_calls(self, seed: int) -> int | None:
        """How many calls a seed makes; None if only a run can tell."""

    def hold(
        self, endpoint: Endpoint, seed: int, run: Run, on_answer: OnAnswer
    ) -> dict[CallId, Answer]:
        """Make all of a seed's calls and fill ``run`` as far as that goes."""


class Watcher(Protocol):
    """Is told how it goes."""

    def starting(self, arm: str, round_number: int, num_calls: int | None) -> None:
        """A server of the arm is starting."""

    def answered(self, run: Run) -> None:
        """There is another answer."""

    def finished(self, results: Results) -> None:
        """Another run is in the results."""


@dataclass(frozen=True)
class Rounds:
    """All runs."""

    arms: Sequence[Arm]
    stage: Stage
    load: Load
    seed: int
    """Of the first round."""

    def run(self, results: Results, watcher: Watcher, on_run: Callable[[], None]) -> None:
        """Fill ``results``, with the run that is stopped, if one is, as the last.

        Args:
            on_run: called whenever there is more in the results.

        Raises:
            ServerError: a server did not start, or died; with the end of its log.
            ArmError: a server is of no use, or failed a request.
        """
        for number in range(1, results.rounds + 1):
            answers: dict[str, dict[CallId, Answer]] = {}
            first = (number - 1) % len(self.arms)
            try:
                for arm in (*self.arms[first:], *self.arms[:first]):
                    self._run_one(arm, number, answers, results, watcher, on_run)
            finally:
                self._compare(number, answers, results)
                on_run()

    def _run_one(
        self,
        arm: Arm,
        number: int,
        answers: dict[str, dict[CallId, Answer]],
        results: Results,
        watcher: Watcher,
        on_run: Callable[[], None],
    ) -> None:
        seed = self.seed + number - 1
        num_calls = self.load.num_calls(seed)
        watcher.starting(arm.name, number, num_calls)
        with self.stage.serve(arm, number) as endpoint:
            run = Run(
                arm=arm.name,
                round=number,
                seed=seed,
                version=endpoint.version,
                cache=endpoint.cache,
                num_calls=num_calls or 0,
            )
            try:
                answers[arm.name] = self.load.hold(endpoint, seed, run, watcher.answered)
                run.is_complete = True
            except BaseException as error:
                run.error = str(error) or type(error).__name__
                raise
            finally:
                run.figures = figures(run)
                results.runs.append(run)
                results.changes = stats.changes(results)
                watcher.finished(results)
                on_run()

    def _compare(
        self, number: int, answers: dict[str, dict[CallId, Answer]], results: Results
    ) -> None:
        reference = self.arms[0].name
        if reference not in answers:
            return
        results.comparisons += [
            compare.compare(reference, answers[reference], arm.name, answers[arm.name], number)
            for arm in self.arms[1:]
            if arm.name in answers
        ]
