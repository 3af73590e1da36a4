# SPDX-License-Identifier: Apache-2.0
"""One arm, in a process of its own: ``python -m vllm_radix.bench.parity.worker JOB RESULT``.

Reads a `Job`, writes an `Outcome`. Needs lm-eval and vLLM.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vllm_radix.bench.parity.results import GENERATES, Job, Outcome, Sample, TaskResult

# Whatever a task says: sampled answers would differ by chance.
_GREEDY = {"do_sample": False, "temperature": 0.0}


def evaluate(job: Job) -> Outcome:
    """Start the engine and run the tasks."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    from vllm_radix.bench.parity.backend import CountingVLLM

    manager = TaskManager(
        include_path=None if job.include_path is None else str(job.include_path),
        metadata=dict(job.model_args),
    )
    # Tasks whose data are not there shall fail before the engine starts.
    tasks = list(manager.load(job.tasks)["tasks"].values())
    model = CountingVLLM(**job.model_args)
    started = time.monotonic()
    found = lm_eval.simple_evaluate(
        model=model,
        tasks=tasks,
        task_manager=manager,
        limit=job.limit,
        num_fewshot=job.num_fewshot,
        apply_chat_template=job.apply_chat_template,
        gen_kwargs=dict(_GREEDY),
        # No error bars: runs are compared, not models.
        bootstrap_iters=0,
    )
    seconds = time.monotonic() - started
    results = {
        name: TaskResult(
            output_type=str(found["configs"][name]["output_type"]),
            metrics=numbers(found["results"][name]),
            samples=samples(logged, str(found["configs"][name]["output_type"])),
        )
        for name, logged in found["samples"].items()
    }
    return Outcome(seconds=seconds, counts=model.counts, tasks=results)


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The values of metrics among what lm-eval reports of a task, by metric and filter."""
    return {
        name: float(value)
        for name, value in metrics.items()
        if "," in name and "_stderr," not in name and isinstance(value, int | float)
    }


def samples(logged: Sequence[Mapping[str, Any]], output_type: str) -> list[Sample]:
    """What lm-eval logged of a task: an entry for each sample and filter."""
    found: dict[int, Sample] = {}
    for entry in logged:
        sample = found.setdefault(
            entry["doc_id"],
            Sample(
                doc_id=entry["doc_id"],
                prompt_hash=entry["prompt_hash"],
                responses=responses(entry["resps"], output_type),
                scores={},
            ),
        )
        for metric in entry["metrics"]:
            value = entry[metric]
            is_number = isinstance(value, int | float)
            sample.scores[f"{metric},{entry['filter']}"] = float(value) if is_number else str(value)
    return sorted(found.values(), key=lambda sample: sample.doc_id)


def responses(resps: Sequence[Sequence[Any]], output_type: str) -> list[str]:
    """A sample's responses as text: one list for each of its requests, of its repeats."""
    if output_type == GENERATES:
        return [str(text) for repeats in resps for text in repeats]
    # Pairs of a log-likelihood and whether greedy decoding gives the same; rolling ones lack that.
    scored = [pair if isinstance(pair, tuple | list) else (pair, None) for (pair, *_) in resps]
    likeliest = max(range(len(scored)), key=lambda index: scored[index][0])
    greedy = [str(index) for index, (_, is_greedy) in enumerate(scored) if is_greedy]
    return [f"likeliest: {likeliest}; greedy: {', '.join(greedy) or 'none'}"]


if __name__ == "__main__":
    job_file, result_file = map(Path, sys.argv[1:])
    outcome = evaluate(Job.model_validate_json(job_file.read_text()))
    result_file.write_text(outcome.model_dump_json())
