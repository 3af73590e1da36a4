# SPDX-License-Identifier: Apache-2.0
"""What ``results.json`` holds, and what the worker is given and gives back."""

import os
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel

GENERATES = "generate_until"


class Job(BaseModel):
    """What a worker is to do: one arm."""

    model_args: dict[str, Any]
    """Of lm-eval's ``vllm`` backend."""
    tasks: list[str]
    include_path: Path | None
    limit: float | None
    """Samples of each task, or below 1 their share; None for all."""
    num_fewshot: int | None
    """None for what each task says."""
    apply_chat_template: bool


class Counts(BaseModel):
    """What an engine counted while it generated."""

    queries: int = 0
    """Prompt tokens looked up in the prefix cache."""
    hits: int = 0
    """Of them, those found."""
    preemptions: int = 0
    recycled_blocks: int | None = None
    """Blocks handed out again after an earlier use; None where the engine was not told to count
    them."""

    def plus(self, before: Self, after: Self) -> Self:
        """These counts, and what was counted between two readings."""
        recycled = None
        if after.recycled_blocks is not None:
            recycled = (
                (self.recycled_blocks or 0) + after.recycled_blocks - (before.recycled_blocks or 0)
            )
        return type(self)(
            queries=self.queries + after.queries - before.queries,
            hits=self.hits + after.hits - before.hits,
            preemptions=self.preemptions + after.preemptions - before.preemptions,
            recycled_blocks=recycled,
        )

    @property
    def hit_rate(self) -> float:
        """Between 0 and 1; 0 when nothing was looked up."""
        return self.hits / self.queries if self.queries else 0.0


class Sample(BaseModel):
    """One item of a task, as the model answered it."""

    doc_id: int
    prompt_hash: str
    """Of the prompt, so that only answers to the same one are compared."""
    responses: list[str]
    """Generated texts; of a log-likelihood task, which choice was likeliest and which were what
    greedy decoding gives."""
    scores: dict[str, float | str]
    """By metric and filter."""


class TaskResult(BaseModel):
    """One task on one arm."""

    output_type: str
    metrics: dict[str, float]
    """By metric and filter."""
    samples: list[Sample]

    @property
    def generates(self) -> bool:
        """Whether its prompts are looked up in the prefix cache: others ask for the logprobs of
        their prompts, and vLLM computes such prompts in full."""
        return self.output_type == GENERATES


class Outcome(BaseModel):
    """What a worker gives back: all tasks on one arm."""

    seconds: float
    """Of the evaluation; starting the engine is not included."""
    counts: Counts
    tasks: dict[str, TaskResult]


class ArmResult(Outcome):
    """All tasks on one arm, and which it is."""

    arm: str
    model_args: dict[str, Any]

    @property
    def num_generated(self) -> int:
        """Samples answered with generated text."""
        return sum(len(task.samples) for task in self.tasks.values() if task.generates)


class Difference(BaseModel):
    """A sample that an arm answered otherwise than the reference did."""

    task: str
    doc_id: int
    is_evidence: bool
    """Whether the task's prompts are looked up in the cache."""
    position: int
    """The first differing character, from 0, of the first response that differs."""
    reference: str
    """The reference's response from a few characters before that position on."""
    answer: str
    """The arm's, likewise."""
    reference_scores: dict[str, float | str]
    scores: dict[str, float | str]


class Comparison(BaseModel):
    """One arm against the reference."""

    arm: str
    compared: int
    """Generated answers to the same prompts."""
    different: int
    """Of them, those that differ."""
    other_prompts: int
    """Samples whose prompts differ between the arms, so that nothing can be said."""
    differences: list[Difference]
    """Of all tasks, log-likelihood ones included."""
    metrics: dict[str, dict[str, float]]
    """By task and metric: this arm's value minus the reference's."""


class Results(BaseModel):
    """A whole run, or as much of it as there is."""

    started: str
    model: str
    tasks: list[str]
    stress: bool
    environment: dict[str, str]
    arms: list[ArmResult] = []
    comparisons: list[Comparison] = []
    failures: list[str] | None = None
    """Why parity is not shown; empty if it is, None if there is nothing to judge yet."""
    error: str | None = None
    """What ended the run early."""

    def write(self, file: Path) -> None:
        """Replace the file at once, so that it is whole at any time."""
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(".partial")
        partial.write_text(self.model_dump_json(indent=1))
        os.replace(partial, file)
