# SPDX-License-Identifier: Apache-2.0
"""The life of a request whose prompt is cached but for a short suffix, and an uncached prefill.

A round is one request for each step that is timed, so that no step finds the work of another
done. The prefix was cached by an earlier request; the suffix is new each time, as a user's turn
after a long document is, and stays cached behind the prefix. Requests outlive their round, so that
the destruction of their lists of tokens falls into no figure.
"""

from functools import partial

from benchmarks.micro.contenders import (
    BLOCK_SIZE,
    CHUNK_TOKENS,
    Contender,
    as_received,
    both,
    random_tokens,
    stock,
)
from benchmarks.micro.figures import Figure, Target, share_of_stock
from benchmarks.micro.timing import interleaved, timed

SUFFIX_TOKENS = 60
"""Not a multiple of the block size: few prompts are."""

FIND = "find the prefix: get_computed_blocks()"
ADMIT = "admit: schedule()"
FREE = "finish and free: finish_requests()"
FIRST_TOKEN = "first token: update_from_output()"
LAST_TOKEN = "last token, finish, free: update_from_output()"
ARRIVE = "arrival to admitted, hashing included"


def cached_prefix(num_tokens: int, rounds: int, targets: dict[str, Target]) -> list[Figure]:
    """Figures for requests that share a cached prefix of ``num_tokens`` tokens.

    Args:
        num_tokens: length of the prefix, a multiple of the block size.
        rounds: how many times each contender is measured.
        targets: by figure; those without one are left out of the verdict.
    """
    # Room for all suffixes: what eviction costs is measured elsewhere.
    num_blocks = (num_tokens + 5 * (rounds + 8) * SUFFIX_TOKENS) // BLOCK_SIZE
    contenders = [*both(num_blocks), stock(num_blocks, hash_algorithm="xxhash")]
    prefix = random_tokens(num_tokens, num_tokens)
    for contender in contenders:
        contender.run(as_received(prefix, _suffix(0)))
    medians = interleaved(contenders, rounds, partial(_life, prefix))
    figures = []
    for name in (FIND, ADMIT, FREE, FIRST_TOKEN, LAST_TOKEN, ARRIVE):
        of = medians[name]
        figures.append(Figure(name, of["ours"], of["stock"], targets.get(name)))
    of = medians[ARRIVE]
    figures.append(Figure("the same, stock hashing with xxhash", of["ours"], of["stock, xxhash"]))
    return figures


def _life(prefix: list[int], contender: Contender, round_: int) -> dict[str, float]:
    scheduler = contender.scheduler

    def prompt(number: int) -> list[int]:
        return as_received(prefix, _suffix(1 + 3 * round_ + number))

    times: dict[str, float] = {}
    request = contender.arrive(prompt(0))
    times[FIND], found = timed(lambda: scheduler.kv_cache_manager.get_computed_blocks(request))
    assert found[1] == len(prefix)
    contender.abort(request)

    request = contender.arrive(prompt(1), max_tokens=2)
    times[ADMIT], step = timed(scheduler.schedule)
    assert step.total_num_scheduled_tokens == SUFFIX_TOKENS
    scheduler.update_from_output(step, contender.sampled(step))
    times[FREE], _ = timed(lambda: contender.abort(request))

    tokens = prompt(2)
    times[ARRIVE], (request, step) = timed(
        lambda: (contender.arrive(tokens, max_tokens=2), scheduler.schedule())
    )
    assert step.total_num_scheduled_tokens == SUFFIX_TOKENS
    for figure in (FIRST_TOKEN, LAST_TOKEN):
        update = partial(scheduler.update_from_output, step, contender.sampled(step))
        times[figure], _ = timed(update)
        step = scheduler.schedule()
    assert request.is_finished()
    return times


def _suffix(number: int) -> list[int]:
    # No two share their first token: a match is the prefix exactly.
    return [number, *random_tokens(SUFFIX_TOKENS - 1, number)]


def uncached_prefill(num_tokens: int, rounds: int) -> list[Figure]:
    """Figures for ``schedule()`` over the chunks of a prompt that nothing cached."""
    num_blocks = num_tokens // BLOCK_SIZE
    figures = []
    for name, pool_size, empty in (
        ("into an empty cache", 2 * num_blocks, True),
        ("into a full cache", num_blocks + 512, False),
    ):
        medians = interleaved(both(pool_size), rounds, partial(_prefill, num_tokens, empty))
        of = medians["prefill"]
        figures.append(Figure(f"schedule() of all chunks, {name}", of["ours"], of["stock"]))
    return figures


def _prefill(num_tokens: int, empty: bool, contender: Contender, round_: int) -> dict[str, float]:
    scheduler = contender.scheduler
    if empty:
        assert scheduler.reset_prefix_cache()
    contender.arrive(as_received(random_tokens(num_tokens, num_tokens, 1 + round_)))
    seconds = 0.0
    num_chunks = 0
    while scheduler.has_unfinished_requests():
        of_chunk, step = timed(scheduler.schedule)
        scheduler.update_from_output(step, contender.sampled(step))
        seconds += of_chunk
        num_chunks += 1
    assert num_chunks == num_tokens // CHUNK_TOKENS
    return {"prefill": seconds}


def long_targets() -> dict[str, Target]:
    """What is asked for a prefix of 131,072 tokens."""
    return {
        FIND: share_of_stock(1 / 20, "1/20 of stock"),
        ADMIT: share_of_stock(1 / 8, "1/8 of stock"),
        FREE: share_of_stock(1 / 10, "1/10 of stock"),
        ARRIVE: share_of_stock(1 / 8, "1/8 of stock"),
    }


def short_targets() -> dict[str, Target]:
    """What is asked for a prefix of 1,024 tokens."""
    return dict.fromkeys((FIND, ADMIT, FREE, ARRIVE), share_of_stock(1.1))
