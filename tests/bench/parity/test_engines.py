# SPDX-License-Identifier: Apache-2.0
"""``vllm-radix parity`` with lm-eval and real engines of a tiny model."""

import io
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from engine.kernels import skip_without_vllm_for_cpu
from engine.models import tiny_llama
from rich.console import Console

from vllm_radix.bench.parity import arms, main
from vllm_radix.bench.parity.plan import Settings
from vllm_radix.bench.parity.results import Results

from . import broken

pytestmark = pytest.mark.engine

ITEMS = 24
# A shared start of many blocks, and an own end.
TASK = """
task: {name}
dataset_path: json
dataset_kwargs:
  data_files: {{test: {data}}}
test_split: test
output_type: {output_type}
doc_to_text: "{shared} {{{{text}}}}"
doc_to_target: {target}
{more}
metric_list:
  - metric: {metric}
    aggregation: mean
    higher_is_better: true
"""
SHARED = (
    "A block holds the keys and values of a fixed number of tokens. A block table maps the "
    "positions of a request to blocks. When two requests start with the same tokens, the second "
    "may read the blocks that the first has written, and its prefill starts where the shared "
    "prefix ends. A cache that finds such prefixes must never hand out a block whose content is "
    "not final."
)
MODEL_ARGS = "dtype=float32,max_model_len=256,block_size=32,enforce_eager=True"
# Two requests at once, so that the later ones find what the first have cached.
PLAIN = f"{MODEL_ARGS},max_num_seqs=2"


@pytest.fixture(scope="module", autouse=True)
def _needs_vllm_for_cpu_and_lm_eval() -> None:
    pytest.importorskip("lm_eval", reason="tasks are run by lm-eval")
    skip_without_vllm_for_cpu("run engines")


@pytest.fixture(scope="module", autouse=True)
def _environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What the workers, and the engines that they start, inherit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("datasets")))
        patch.setenv("VLLM_NO_USAGE_STATS", "1")
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny-llama"))


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    rng = Random(1)
    words = SHARED.split()
    lines = [f'{{"text": "{" ".join(rng.choices(words, k=8))}"}}' for _ in range(ITEMS)]
    (folder / "items.jsonl").write_text("\n".join(lines))
    data = folder / "items.jsonl"
    generate = "generation_kwargs: {until: ['@@@'], max_gen_toks: 24, temperature: 1.0}"
    # Grows by two blocks, so that a full pool has to preempt.
    grow = generate.replace("24", "64")
    kinds = {
        "ours_generated": ("generate_until", "prefix", generate, "exact_match"),
        "ours_long": ("generate_until", "prefix", grow, "exact_match"),
        "ours_scored": ("multiple_choice", "0", 'doc_to_choice: ["a", "b"]', "acc"),
        "ours_missing": ("generate_until", "prefix", generate, "exact_match"),
    }
    for name, (output_type, target, more, metric) in kinds.items():
        text = TASK.format(
            name=name,
            data=data if name != "ours_missing" else folder / "missing.jsonl",
            output_type=output_type,
            shared=SHARED,
            target=target,
            more=more,
            metric=metric,
        )
        (folder / f"{name}.yaml").write_text(text)
    return folder


def settings(model: Path, tasks: Path, out: Path) -> Settings:
    return Settings(
        model=str(model),
        tasks="ours_generated,ours_scored",
        include_path=tasks,
        limit=None,
        num_fewshot=None,
        apply_chat_template=False,
        model_args=PLAIN,
        stress=False,
        out=out,
    )


def recording() -> Console:
    return Console(file=io.StringIO(), width=200)


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def read(out: Path) -> Results:
    return Results.model_validate_json((out / "results.json").read_text())


@pytest.fixture(scope="module")
def plain(
    model: Path, tasks: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[int, Results, str]:
    """A whole run: its exit status, its results, its output."""
    out, console = tmp_path_factory.mktemp("plain"), recording()
    status = main.run_and_report(settings(model, tasks, out), console)
    return status, read(out), printed(console)


def test_both_caches_answer_as_none_does(plain: tuple[int, Results, str]) -> None:
    status, results, output = plain
    assert status == 0, output
    reference, stock, radix = results.arms
    assert (reference.counts.queries, reference.counts.hits) == (0, 0)
    assert 0.4 < stock.counts.hit_rate < radix.counts.hit_rate
    assert stock.counts.queries == radix.counts.queries
    for arm in (reference, stock, radix):
        assert arm.num_generated == ITEMS
        answers = {sample.responses[0] for sample in arm.tasks["ours_generated"].samples}
        # What the model says hangs on the prompt, so a wrong block would be heard.
        assert len(answers) > ITEMS / 2
        assert len(arm.tasks["ours_scored"].samples) == ITEMS
    for comparison in results.comparisons:
        assert (comparison.compared, comparison.differences) == (ITEMS, [])
    assert "ours_scored *" in output


def test_a_broken_cache_is_caught(
    plain: tuple[int, Results, str],
    model: Path,
    tasks: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The arms without the tree are those of the whole run, to save their time."""
    sound = {arm.arm: arm for arm in plain[1].arms if arm.arm != arms.RADIX.name}
    run_arm = main.run_arm
    monkeypatch.setattr(
        main, "run_arm", lambda name, *rest: sound[name] if name in sound else run_arm(name, *rest)
    )
    scheduler = f"{broken.__name__}.{broken.BrokenScheduler.__name__}"
    wrong = arms.Arm("radix", {**arms.RADIX.model_args, "scheduler_cls": scheduler})
    monkeypatch.setattr(arms, "ARMS", (arms.REFERENCE, arms.STOCK, wrong))
    console = recording()
    assert main.run_and_report(settings(model, tasks, tmp_path), console) == 1
    of_stock, of_radix = read(tmp_path).comparisons
    assert of_stock.different == 0
    assert of_radix.different > ITEMS / 2
    assert f"in {of_radix.different} of {ITEMS} samples" in printed(console)


def test_under_stress(model: Path, tasks: Path, tmp_path: Path) -> None:
    stress = replace(
        settings(model, tasks, tmp_path),
        tasks="ours_long",
        model_args=MODEL_ARGS,
        stress=True,
    )
    console = recording()
    assert main.run_and_report(stress, console) == 0, printed(console)
    _, stock, radix = read(tmp_path).arms
    for arm in (stock, radix):
        assert arm.counts.preemptions > 0
        assert arm.counts.recycled_blocks
        assert arm.counts.hits > 0


def test_a_task_without_its_data_is_told(model: Path, tasks: Path, tmp_path: Path) -> None:
    missing = replace(settings(model, tasks, tmp_path), tasks="ours_missing")
    assert main.run_and_report(missing, recording()) == 1
    results = read(tmp_path)
    assert results.arms == []
    assert results.error is not None
    assert "The evaluation ended with exit code 1" in results.error
    assert "missing.jsonl" in results.error


def test_a_model_that_vllm_does_not_take_is_told(tasks: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert main.run_and_report(settings(tmp_path, tasks, tmp_path / "out"), recording()) == 1
    assert "The evaluation ended with exit code 1" in str(read(tmp_path / "out").error)
