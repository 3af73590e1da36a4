# SPDX-License-Identifier: Apache-2.0
"""What ``results.json`` holds. Times are in seconds."""

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel


class Request(BaseModel):
    """One answered call, as its client saw it."""

    session: str
    turn: int
    """From 0; of an open loop, always 0."""
    start: float
    """From the start of the run."""
    ttft: float
    """To the first token of any of the answers."""
    e2e: float
    """To the end of the last answer."""
    tpot: float | None
    """Mean time between two tokens of an answer; None if no answer has two."""
    prompt_tokens: int
    output_tokens: int
    """Of all ``n`` answers."""
    cached_tokens: int | None
    """Prompt tokens read from the cache, if the server tells."""


class Sample(BaseModel):
    """What ``/metrics`` said at a time of a run. Counts are from the start of the run."""

    time: float
    queries: float
    """Prompt tokens looked up in the prefix cache."""
    hits: float
    """Of them, those found."""
    preemptions: float
    kv_usage: float
    """Share of the KV blocks that running requests hold, between 0 and 1."""
    running: float
    """Requests."""
    waiting: float


class Figures(BaseModel):
    """One run in figures."""

    ttft_p50: float
    ttft_p90: float
    ttft_p99: float
    tpot_p50: float | None
    tpot_p90: float | None
    tpot_p99: float | None
    e2e_p50: float
    e2e_p90: float
    e2e_p99: float
    output_tps: float
    """Output tokens per second, from the start of the run to its last answer."""
    hit_rate: float | None
    """Prompt tokens found in the prefix cache, of those looked up; None if none were."""
    images_encoded: int | None = None
    preemptions: float | None
    kv_usage_mean: float | None
    kv_usage_max: float | None


class Run(BaseModel):
    """One arm in one round."""

    arm: str
    round: int
    """From 1."""
    seed: int
    version: str
    """Of the server's vLLM."""
    cache: str
    """How the cache came to be empty at the start, or that it was not, in words."""
    num_calls: int
    """That the workload has; fewer ``requests`` if the run was stopped or sessions were cut."""
    requests: list[Request] = []
    samples: list[Sample] = []
    duration: float = 0.0
    """To the last answer."""
    num_sessions: int = 0
    """0 in an open loop."""
    cut_sessions: int = 0
    """Sessions that ended early, at the model's context length."""
    images_encoded: int | None = None
    """None if that is unknown, as of running servers, or if there are no images."""
    is_complete: bool = False
    error: str | None = None
    figures: Figures | None = None


class Side(BaseModel):
    """What one arm said where two answers part."""

    arm: str
    token: int | None
    """None at the end of the answer, or where the server gives no token ids."""
    text: str
    """The answer from there on, up to 80 characters."""
    gap: float | None
    """The logprob of this arm's token minus that of the other's, by this arm: how near a tie it
    was. None if unknown."""
    gap_is_bound: bool = False
    """The other token was not among the most likely ones, so the gap is at least this."""


class Difference(BaseModel):
    """One answer of two arms to the same prompt, up to where it parts."""

    round: int
    session: str
    turn: int
    call: int
    choice: int
    """Which of the ``n`` answers."""
    position: int | None
    """The first differing token, from 0; None where a server gives no token ids."""
    common_text: str
    """The end of what both said before, up to 80 characters."""
    reference: Side
    other: Side


class Comparison(BaseModel):
    """The answers of one arm against those of the first arm, in one round."""

    round: int
    reference: str
    arm: str
    sampled: bool
    """Whether some were sampled, each with a seed of its own, rather than decoded greedily."""
    compared: int
    """Answers to the same prompts."""
    identical: int
    other_prompts: int
    """Answers to prompts that an earlier difference had changed, and answers one arm lacks."""
    max_logprob_difference: float | None
    """The most by which the logprobs of one and the same token differ."""
    differences: list[Difference] = []
    """The first 50."""


Verdict = Literal["better", "worse", "higher", "lower", "inside the noise", "too few rounds"]


class Change(BaseModel):
    """One figure of one arm against the base arm, round by round."""

    metric: str
    arm: str
    base: str
    kind: Literal["ratio", "difference"]
    values: list[float]
    """Arm divided by base, or arm minus base, for each round that both completed."""
    centre: float | None
    """Geometric mean of ratios, mean of differences."""
    low: float | None
    high: float | None
    """The 95 % confidence interval of the centre; None with a single round."""
    verdict: Verdict


class ArmInfo(BaseModel):
    """What an arm was."""

    name: str
    what: str
    """A command line or an address."""


class Results(BaseModel):
    """Everything that was measured, and how."""

    started: str
    """Local time, ISO 8601."""
    workload: str
    about: str
    parameters: dict[str, Any]
    arms: list[ArmInfo]
    base: str
    """The arm that figures are compared with."""
    rounds: int
    """Asked for."""
    environment: dict[str, str]
    runs: list[Run] = []
    comparisons: list[Comparison] = []
    changes: list[Change] = []
    notes: list[str] = []
    """What a reader must know to judge the figures."""
    error: str | None = None
    """Why it ended early, if it did."""

    def complete(self, arm: str) -> list[Run]:
        """The complete runs of an arm, by round."""
        return [run for run in self.runs if run.arm == arm and run.is_complete]

    def write(self, path: Path) -> None:
        """Write all of it; an earlier file is replaced at once or not at all."""
        part = path.with_name(path.name + ".part")
        part.write_text(self.model_dump_json(indent=1) + "\n")
        part.replace(path)
