# SPDX-License-Identifier: Apache-2.0
"""What differs between two arms, and whether that is more than it may be."""

from math import comb

from vllm_radix.bench.parity.results import ArmResult, Comparison, Difference, Sample, TaskResult

# Characters before and after the place where two responses part.
_BEFORE = 20
_AFTER = 60
# Two metrics are the same if they differ by no more than adding in another order can.
_ROUNDING = 1e-9


def compare(reference: ArmResult, other: ArmResult) -> Comparison:
    """Every sample's responses, and every metric, of an arm against the reference's."""
    compared = different = other_prompts = 0
    differences = []
    metrics = {}
    for name, task in other.tasks.items():
        before = reference.tasks[name]
        metrics[name] = {
            metric: value - before.metrics[metric] for metric, value in task.metrics.items()
        }
        for mine, theirs in zip(before.samples, task.samples, strict=True):
            if mine.prompt_hash != theirs.prompt_hash:
                other_prompts += 1
                continue
            compared += task.generates
            if mine.responses != theirs.responses:
                different += task.generates
                differences.append(_difference(name, task, mine, theirs))
    return Comparison(
        arm=other.arm,
        compared=compared,
        different=different,
        other_prompts=other_prompts,
        differences=differences,
        metrics=metrics,
    )


def judge(stock: Comparison, radix: Comparison, tree: ArmResult, stress: bool) -> list[str]:
    """Why parity is not shown, in sentences; empty if it is.

    Args:
        stock: vLLM's own cache against no cache.
        radix: the tree against no cache.
        tree: the results with the tree.
        stress: whether the run was meant to put the cache under pressure.
    """
    failures = []
    if not radix.compared and not radix.other_prompts:
        failures.append(
            "No task generates text, and only generated text shows anything: add a "
            "generate_until task."
        )
    elif not tree.counts.hits:
        failures.append(
            "The radix tree had no hits, so this run proves nothing: take tasks whose prompts "
            "share a prefix, such as few-shot examples, or more samples."
        )
    if radix.other_prompts or stock.other_prompts:
        failures.append(
            f"{max(radix.other_prompts, stock.other_prompts)} prompts were not the same on all "
            "arms: some task builds them at random."
        )
    if radix.different > stock.different:
        failures.append(
            f"Answers differ from those without a cache in {radix.different} of {radix.compared} "
            f"samples with the radix tree, and in {stock.different} of {stock.compared} with "
            f"vLLM's cache. {_chance(stock, radix)}"
        )
    failures += _worse_metrics(stock, radix, tree)
    if stress and not (tree.counts.preemptions and tree.counts.recycled_blocks):
        failures.append(
            f"With the radix tree there were {tree.counts.preemptions} preemptions and "
            f"{tree.counts.recycled_blocks or 0} blocks handed out again, so it was under no "
            "pressure: lower max_model_len, or num_gpu_blocks_override, in --model-args, or take "
            "more samples."
        )
    return failures


def chance(only_first: int, only_second: int) -> float:
    """How often chance splits so many samples at least so unevenly (an exact sign test).

    Args:
        only_first: samples that differ on the first arm alone.
        only_second: samples that differ on the second arm alone.
    """
    total = only_first + only_second
    smaller = min(only_first, only_second)
    tail = sum(comb(total, number) for number in range(smaller + 1)) / 2**total
    return min(1.0, 2 * tail)


def _worse_metrics(stock: Comparison, radix: Comparison, tree: ArmResult) -> list[str]:
    found = []
    for name, task in tree.tasks.items():
        if not task.generates:
            continue
        for metric, change in radix.metrics[name].items():
            if abs(change) > abs(stock.metrics[name][metric]) + _ROUNDING:
                found.append(
                    f"{name}, {metric}: {change:+.4f} against no cache with the radix tree, "
                    f"{stock.metrics[name][metric]:+.4f} with vLLM's cache."
                )
    return found


def _chance(stock: Comparison, radix: Comparison) -> str:
    on_stock, on_radix = (
        {(one.task, one.doc_id) for one in comparison.differences if one.is_evidence}
        for comparison in (stock, radix)
    )
    only_radix, only_stock = len(on_radix - on_stock), len(on_stock - on_radix)
    share = chance(only_radix, only_stock)
    return (
        f"{only_radix} differ with the tree alone, {only_stock} with vLLM's alone; chance splits "
        f"them at least so unevenly in {share:.2g} of all cases."
    )


def _difference(name: str, task: TaskResult, mine: Sample, theirs: Sample) -> Difference:
    before, after = next(
        pair for pair in zip(mine.responses, theirs.responses, strict=True) if pair[0] != pair[1]
    )
    position = next(
        (index for index, (a, b) in enumerate(zip(before, after, strict=False)) if a != b),
        min(len(before), len(after)),
    )
    window = slice(max(position - _BEFORE, 0), position + _AFTER)
    return Difference(
        task=name,
        doc_id=mine.doc_id,
        is_evidence=task.generates,
        position=position,
        reference=before[window],
        answer=after[window],
        reference_scores=mine.scores,
        scores=theirs.scores,
    )
