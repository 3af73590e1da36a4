# SPDX-License-Identifier: Apache-2.0
"""Made-up results of arms."""

from vllm_radix.bench.parity.results import ArmResult, Counts, Sample, TaskResult

ANSWERS = ("Rome", "Oslo", "Paris", "Athens", "Lisbon")


def task(*answers: str, output_type: str = "generate_until", accuracy: float = 0.6) -> TaskResult:
    """A task with a sample for each answer."""
    return TaskResult(
        output_type=output_type,
        metrics={"exact_match,none": accuracy},
        samples=[
            Sample(
                doc_id=number,
                prompt_hash=f"prompt {number}",
                responses=[answer],
                scores={"exact_match,none": float(answer == ANSWERS[number])},
            )
            for number, answer in enumerate(answers)
        ],
    )


def arm(name: str, *answers: str, hits: int = 500, **tasks: TaskResult) -> ArmResult:
    """An arm that ran a task called cities, and others."""
    return ArmResult(
        arm=name,
        model_args={"pretrained": "model"},
        seconds=1.5,
        counts=Counts(queries=1000, hits=hits, preemptions=3, recycled_blocks=9),
        tasks={"cities": task(*(answers or ANSWERS)), **tasks},
    )
