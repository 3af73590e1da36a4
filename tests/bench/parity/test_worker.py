# SPDX-License-Identifier: Apache-2.0
"""What is taken from lm-eval's results."""

from vllm_radix.bench.parity.results import Counts
from vllm_radix.bench.parity.worker import numbers, responses, samples


def test_a_sample_has_the_scores_of_all_filters() -> None:
    def entry(doc_id: int, name: str, score: object) -> dict[str, object]:
        return {
            "doc_id": doc_id,
            "prompt_hash": f"hash {doc_id}",
            "resps": [[f"answer {doc_id}"]],
            "filter": name,
            "metrics": ["exact_match"],
            "exact_match": score,
        }

    logged = [entry(1, "strict", 0.0), entry(0, "strict", 1.0), entry(1, "flexible", ("a", "b"))]
    first, second = samples(logged, "generate_until")
    assert (first.doc_id, first.prompt_hash, first.responses) == (0, "hash 0", ["answer 0"])
    assert first.scores == {"exact_match,strict": 1.0}
    assert second.scores == {"exact_match,strict": 0.0, "exact_match,flexible": "('a', 'b')"}


def test_metrics_are_numbers_without_their_errors() -> None:
    found = numbers(
        {
            "name": "task",
            "sample_len": 5,
            "acc,none": 0.4,
            "acc_stderr,none": 0.1,
            "bypass,none": "N/A",
        }
    )
    assert found == {"acc,none": 0.4}


def test_all_repeats_of_generated_text_count() -> None:
    assert responses([["a", "b"]], "generate_until") == ["a", "b"]


def test_log_likelihoods_become_choices() -> None:
    scored = [[(-7.5, False)], [(-2.25, True)], [(-3.0, False)]]
    assert responses(scored, "multiple_choice") == ["likeliest: 1; greedy: 1"]
    assert responses([[(-2.0, False)]], "loglikelihood") == ["likeliest: 0; greedy: none"]
    assert responses([[-20.5]], "loglikelihood_rolling") == ["likeliest: 0; greedy: none"]


def test_counts_between_two_readings_add_up() -> None:
    total = Counts()
    for before, after in ((10, 40), (50, 55)):
        total = total.plus(
            Counts(queries=before, hits=before, preemptions=before, recycled_blocks=before),
            Counts(queries=after, hits=after, preemptions=after, recycled_blocks=after),
        )
    assert total == Counts(queries=35, hits=35, preemptions=35, recycled_blocks=35)
    assert Counts().plus(Counts(), Counts(queries=4)) == Counts(queries=4)
    assert Counts(queries=4, hits=1).hit_rate == 0.25
    assert Counts().hit_rate == 0.0
