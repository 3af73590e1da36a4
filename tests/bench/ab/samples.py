# SPDX-License-Identifier: Apache-2.0
"""Made-up results."""

from random import Random

from vllm_radix.bench.ab import stats
from vllm_radix.bench.ab.figures import figures
from vllm_radix.bench.ab.results import (
    ArmInfo,
    Comparison,
    Difference,
    Request,
    Results,
    Run,
    Sample,
    Side,
)

ARMS = ("no-cache", "stock", "radix")


def make_run(arm: str, number: int, seconds: float, hit_rate: float, turns: int = 5) -> Run:
    """A complete run of ten sessions whose TTFT is around ``seconds``."""
    rng = Random(f"{arm} {number}")
    requests = [
        Request(
            session=f"agent-{session}",
            turn=turn,
            start=turn + session / 10,
            ttft=(ttft := seconds * (1 + turn / 4) * rng.lognormvariate(0, 0.5)),
            e2e=ttft + 1.5,
            tpot=0.05 * rng.uniform(0.9, 1.1),
            prompt_tokens=1000 + 100 * turn,
            output_tokens=30,
            cached_tokens=round(hit_rate * (1000 + 100 * turn) * (turn + 1) / turns),
        )
        for session in range(10)
        for turn in range(turns)
    ]
    samples = [
        Sample(
            time=time / 2,
            queries=1000.0 * time,
            # Nothing is found at first.
            hits=1000.0 * max(time - 4, 0) * hit_rate * 1.25,
            preemptions=0,
            kv_usage=min(time, 20 - time) / 12,
            running=3,
            waiting=1,
        )
        for time in range(21)
    ]
    run = Run(
        arm=arm,
        round=number,
        seed=number,
        version="1.2.3",
        cache="fresh server",
        num_calls=len(requests),
        requests=requests,
        samples=samples,
        duration=10.0,
        is_complete=True,
    )
    run.figures = figures(run)
    return run


def make_results(rounds: int = 3) -> Results:
    """Three arms: stock twice as fast as none, radix again half as fast."""
    results = Results(
        started="2030-01-02 03:04:05",
        workload="agents",
        about="agents in a few roles",
        parameters={"num_sessions": 10, "turns": 5},
        arms=[ArmInfo(name=name, what=f"vllm serve model --{name} " * 4) for name in ARMS],
        base="stock",
        rounds=rounds,
        environment={"machine": "x86_64 <no GPU>"},
    )
    for number in range(1, rounds + 1):
        for arm, seconds, hit_rate in zip(ARMS, (0.8, 0.4, 0.2), (0.0, 0.5, 0.7), strict=True):
            results.runs.append(make_run(arm, number, seconds, hit_rate))
    side = Side(arm="no-cache", token=5, text=" a <b>lamp</b>", gap=0.0012)
    results.comparisons = [
        Comparison(
            round=1,
            reference="no-cache",
            arm=arm,
            sampled=False,
            compared=50,
            identical=50 - len(differences),
            other_prompts=0,
            max_logprob_difference=2.5e-6,
            differences=differences,
        )
        for arm, differences in (
            ("stock", []),
            (
                "radix",
                [
                    Difference(
                        round=1,
                        session="agent-3",
                        turn=1,
                        call=0,
                        choice=0,
                        position=11,
                        common_text="and the key was",
                        reference=side,
                        other=side.model_copy(
                            update={"arm": "radix", "text": " a rope", "gap": 0.0009}
                        ),
                    )
                ],
            ),
        )
    ]
    results.changes = stats.changes(results)
    return results
