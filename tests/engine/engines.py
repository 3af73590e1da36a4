# SPDX-License-Identifier: Apache-2.0
"""Engines for the tests: a real vLLM engine on the CPU, in this process, stepped by hand.

Four kinds exist: `off` (no prefix cache: what every answer is compared with), `stock` (vLLM's own
prefix cache), `radix` (ours) and `blocks` (ours, reusing whole blocks only, as stock does).
In-process engines let a test reach the scheduler, act between two steps, and count exactly what
each step did.
"""

import itertools
import math
import os
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol
from unittest.mock import patch

import torch
from vllm import EngineArgs, SamplingParams
from vllm.distributed.kv_transfer import kv_transfer_state
from vllm.lora.request import LoRARequest
from vllm.outputs import RequestOutput
from vllm.platforms.cpu import CpuPlatform
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
from vllm.v1.attention.backend import MultipleOf
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.metrics.stats import IterationStats, SchedulerStats

from .models import ITEM

# vLLM's worker disables this function, and numba resets what it does.
_set_num_threads = torch.set_num_threads

Kind = Literal["off", "stock", "blocks", "radix"]


def _radix(**options: Any) -> dict[str, Any]:
    return {
        "enable_prefix_caching": True,
        "scheduler_cls": "vllm_radix.Scheduler",
        "additional_config": {"radix": {"debug_checks": True, **options}},
    }


def in_order_of_arrival(kind: str) -> dict[str, Any]:
    """``additional_config`` of a kind of ours that holds nobody back: some are preempted then."""
    options = {"debug_checks": True, "token_granular": kind == "radix", "schedule": "fcfs"}
    return {"radix": options}


# Engine arguments that select each kind.
KINDS: dict[Kind, dict[str, Any]] = {
    "off": {"enable_prefix_caching": False},
    "stock": {"enable_prefix_caching": True},
    "blocks": _radix(token_granular=False),
    "radix": _radix(),
}

LOGPROB_TOLERANCE = 1e-4
TOP_LOGPROBS = 5  # logprobs kept per generated token

# A run that needs more steps than this is taken for stuck.
MAX_STEPS = 20_000


class Item(Protocol):
    """What may stand in a prompt beside tokens: an image, say."""

    def layout(self) -> Sequence[Hashable]:
        """What is embedded at each position of its span; None where a token stands."""

    @staticmethod
    def prompt(tokens: Sequence[int], items: Sequence[Any]) -> dict[str, Any]:
        """What vLLM takes for a prompt in which an `ITEM` stands for each of `items`."""


@dataclass(frozen=True)
class Ask:
    """One request: a prompt as token ids, and the parts of a vLLM request that the tests vary.

    An `ITEM` in the prompt stands for each of the items, which are of one type.
    """

    prompt: tuple[int, ...]
    max_tokens: int = 8
    n: int = 1
    temperature: float = 0.0
    seed: int | None = None
    salt: str | None = None
    lora: LoRARequest | None = None
    priority: int = 0
    prompt_logprobs: int | None = None
    skip_reading: bool | None = None
    structure: StructuredOutputsParams | None = None
    items: tuple[Item, ...] = ()

    def positions(self) -> tuple[Any, ...]:
        """What stands at each position that the model sees: a token, or a part of an item."""
        items = iter(self.items)
        found: list[Any] = []
        for token in self.prompt:
            if token == ITEM:
                item = next(items)
                found += [(item, part) for part in range(len(item.layout()))]
            else:
                found.append(token)
        return tuple(found)

    def params(self) -> SamplingParams:
        return SamplingParams(
            n=self.n,
            temperature=self.temperature,
            seed=self.seed,
            max_tokens=self.max_tokens,
            # Without structure an answer has exactly `max_tokens` tokens.
            ignore_eos=self.structure is None,
            logprobs=TOP_LOGPROBS,
            prompt_logprobs=self.prompt_logprobs,
            skip_reading_prefix_cache=self.skip_reading,
            structured_outputs=self.structure,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )


Logprobs = list[dict[int, float]]  # one dict a position: token id to natural-log probability


@dataclass(frozen=True)
class Answer:
    """What one request got back. `tokens` and `logprobs` hold one entry a completion (n of them).

    `cached` is the number of prompt tokens that vLLM reports as read from its caches; None when
    the request was aborted before its first token.
    """

    tokens: list[list[int]]
    logprobs: list[Logprobs]
    prompt_logprobs: Logprobs | None
    cached: int | None


@dataclass
class Totals:
    """Counters since the last `Engine.reset`, summed over steps."""

    queries: int = 0  # prompt tokens looked up in the prefix cache
    hits: int = 0  # of them, found
    requests: int = 0  # requests looked up
    preempted_requests: int = 0  # lookups of requests that had been preempted before
    preempted_hits: int = 0
    preemptions: int = 0
    external_hits: int = 0  # tokens found by a KV connector
    drafted: int = 0  # speculative tokens proposed
    accepted: int = 0  # of them, accepted
    max_usage: float = 0.0  # highest share of the pool in use
    encoded: int = 0  # images sent to the vision encoder


class _Recorder(StatLoggerBase):
    """A vLLM stat logger that adds what the engine reports to a `Totals`."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        self.totals = Totals()

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        t = self.totals
        if iteration_stats is not None:
            t.preemptions += iteration_stats.num_preempted_reqs
        if scheduler_stats is None:
            return
        t.max_usage = max(t.max_usage, scheduler_stats.kv_cache_usage)
        if scheduler_stats.iteration_details is not None:
            t.encoded += scheduler_stats.iteration_details.num_encoder_inputs
        cache = scheduler_stats.prefix_cache_stats
        if cache is not None:
            t.queries += cache.queries
            t.hits += cache.hits
            t.requests += cache.requests
            t.preempted_requests += cache.preempted_requests
            t.preempted_hits += cache.preempted_hits
        if scheduler_stats.connector_prefix_cache_stats is not None:
            t.external_hits += scheduler_stats.connector_prefix_cache_stats.hits
        if scheduler_stats.spec_decoding_stats is not None:
            t.drafted += scheduler_stats.spec_decoding_stats.num_draft_tokens
            t.accepted += scheduler_stats.spec_decoding_stats.num_accepted_tokens

    def log_engine_initialized(self) -> None:
        pass


def _values(logprobs: Any) -> Logprobs:
    return [{} if d is None else {t: v.logprob for t, v in d.items()} for d in logprobs]


def _answer(output: RequestOutput) -> Answer:
    prompt = output.prompt_logprobs
    return Answer(
        tokens=[list(c.token_ids) for c in output.outputs],
        logprobs=[_values(c.logprobs) for c in output.outputs],
        prompt_logprobs=None if prompt is None else _values(prompt),
        cached=output.num_cached_tokens,
    )


def _any_block_size() -> AbstractContextManager[object]:
    """Let an engine that is built meanwhile have blocks of any multiple of 16 tokens.

    vLLM's CPU attention admits multiples of 32 only, for speed; its kernel for the others is there.
    """
    return patch.object(
        CPUAttentionBackend,
        "get_supported_kernel_block_sizes",
        staticmethod(lambda kv_cache_spec=None: [MultipleOf(16)]),
    )


def _connector(agent: Any) -> AbstractContextManager[object]:
    """Make `agent` the worker's KV connector: vLLM keeps one a process, and we an engine."""
    return patch.object(kv_transfer_state, "_KV_CONNECTOR_AGENT", agent)


# Engines of one process share its torch.distributed state, and the end of one closes that of all.
_ALIVE: list[LLMEngine] = []


@dataclass
class Engine:
    """A vLLM engine of one kind, stepped by hand. It lives until the process ends."""

    kind: Kind
    model: Path
    args: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        args: dict[str, Any] = {
            "model": str(self.model),
            "dtype": "float32",
            "enforce_eager": True,
            "seed": 0,
            "async_scheduling": False,
            "block_size": 32,
            "max_model_len": 1024,
            "max_num_seqs": 16,
            "kv_cache_memory_bytes": 64 << 20,
            "enable_logging_iteration_details": True,  # where images that are encoded are counted
            **KINDS[self.kind],
            **self.args,
        }
        recorders: list[_Recorder] = []

        def recorder(vllm_config: Any, engine_index: int) -> _Recorder:
            recorders.append(_Recorder(vllm_config, engine_index))
            return recorders[-1]

        with (
            _any_block_size(),
            _connector(None),
            patch.dict(os.environ, VLLM_ENABLE_V1_MULTIPROCESSING="0"),
        ):
            self.llm = LLMEngine.from_engine_args(EngineArgs(**args), stat_loggers=[recorder])
            self._connector = kv_transfer_state._KV_CONNECTOR_AGENT
        # Once a process is enough, and its search for kernels trips over numba, which n-gram
        # speculation loads.
        CpuPlatform.register_triton_kernel_overrides = classmethod(lambda cls: None)
        [self._recorder] = recorders
        _ALIVE.append(self.llm)
        self._ids = itertools.count()
        self.answers: dict[str, Answer] = {}
        # Seconds, of which each step takes a hundredth: how busy the machine is must not decide
        # who waits.
        self._now = 0.0
        admission = getattr(self.scheduler, "admission", None)
        if admission is not None:
            admission.clock = lambda: self._now

    @property
    def scheduler(self) -> Scheduler:
        return self.llm.engine_core.engine_core.scheduler

    @property
    def totals(self) -> Totals:
        return self._recorder.totals

    @property
    def block_size(self) -> int:
        return self.llm.vllm_config.cache_config.block_size

    @property
    def used_blocks(self) -> int:
        """Blocks that cannot be handed out now, the null block apart."""
        pool = self.scheduler.kv_cache_manager.block_pool
        return pool.num_gpu_blocks - pool.get_num_free_blocks() - 1

    def add(self, ask: Ask, request_id: str | None = None) -> str:
        """Queue a request; return its id."""
        request_id = request_id or f"{self.kind}-{next(self._ids)}"
        prompt: dict[str, Any] = {"prompt_token_ids": list(ask.prompt)}
        if ask.items:
            prompt = ask.items[0].prompt(ask.prompt, ask.items)
        if ask.salt is not None:
            prompt["cache_salt"] = ask.salt
        self.llm.add_request(
            request_id, prompt, ask.params(), lora_request=ask.lora, priority=ask.priority
        )
        return request_id

    def abort(self, request_id: str) -> None:
        self.llm.abort_request([request_id])

    def step(self) -> list[RequestOutput]:
        """Run one engine step, keep the answers of finished requests, return all outputs."""
        # The models are small and tests run side by side: more threads would wait for one another.
        _set_num_threads(1)
        self._now += 0.01
        with _connector(self._connector):
            outputs = self.llm.step()
        for output in outputs:
            if output.finished:
                self.answers[output.request_id] = _answer(output)
        return outputs

    def drain(self, before_step: Callable[[int], None] | None = None) -> None:
        """Step until nothing is left, neither requests nor (with asynchronous scheduling) steps.

        `before_step` gets the number of the step to come.
        """
        for step in range(MAX_STEPS):
            if before_step is not None:
                before_step(step)
            in_flight = self.llm.engine_core.engine_core.batch_queue
            if not self.llm.has_unfinished_requests() and not in_flight:
                return
            self.step()
        raise AssertionError(f"requests are left after {MAX_STEPS} steps")

    def run(self, asks: Sequence[Ask], arrivals: Sequence[int] | None = None) -> list[Answer]:
        """Answer all requests, in their order.

        Request i is queued before step `arrivals[i]`, or as soon as the engine is idle, whichever
        is first. Arrivals must not decrease; without them all are queued before the first step.
        """
        waiting = list(zip(arrivals or [0] * len(asks), asks, strict=True))[::-1]
        ids: list[str] = []

        def arrive(step: int) -> None:
            while waiting and (waiting[-1][0] <= step or not self.llm.has_unfinished_requests()):
                ids.append(self.add(waiting.pop()[1]))

        self.drain(arrive)
        return [self.answers.pop(i) for i in ids]

    def reset(self) -> None:
        """Empty the prefix cache and the counters; fail if any block is still in use."""
        assert not self.llm.has_unfinished_requests()
        assert self.used_blocks == 0, f"{self.used_blocks} blocks leaked"
        assert self.llm.reset_prefix_cache(), "the prefix cache could not be reset"
        self.llm.reset_encoder_cache()
        self.answers.clear()
        self._recorder.totals = Totals()


def ideal_reuse(asks: Sequence[Ask], answers: Sequence[Answer]) -> list[int]:
    """How many prompt tokens each request could read if every earlier one was there, computed.

    All but the last token of a prompt and of the answers to earlier prompts can be.
    """
    known: list[tuple[object, tuple[Any, ...]]] = []
    reuse = []
    for ask, answer in zip(asks, answers, strict=True):
        space = (ask.salt, ask.lora)
        reads = not ask.skip_reading and ask.prompt_logprobs is None
        prompt = ask.positions()
        common = [_common_length(prompt, k) for s, k in known if s == space and reads]
        reuse.append(min(max(common, default=0), len(prompt) - 1))
        known += [(space, prompt + tuple(t[:-1])) for t in answer.tokens]
    return reuse


def _common_length(a: Sequence[Any], b: Sequence[Any]) -> int:
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))


def one_by_one(asks: Sequence[Ask]) -> list[int]:
    """Arrivals that let each request wait until the one before has been answered."""
    return [i * MAX_STEPS for i in range(len(asks))]


def assert_same(expected: Sequence[Answer], got: Sequence[Answer]) -> None:
    """Fail unless both runs gave the same tokens, and logprobs within the tolerance."""
    assert len(expected) == len(got)
    for i, (e, g) in enumerate(zip(expected, got, strict=True)):
        assert g.tokens == e.tokens, f"request {i}: tokens differ"
        pairs = list(zip(e.logprobs, g.logprobs, strict=True))
        if e.prompt_logprobs is not None:
            assert g.prompt_logprobs is not None
            pairs.append((e.prompt_logprobs, g.prompt_logprobs))
        for a, b in pairs:
            worst = max_difference(a, b)
            assert worst <= LOGPROB_TOLERANCE, f"request {i}: logprobs differ by {worst:.2g}"


def max_difference(expected: Logprobs, got: Logprobs) -> float:
    """The largest difference between two lists of logprobs; infinity if they list other tokens.

    Both list the most probable tokens, so near its end one may list a token that the other lacks:
    only the last is let off.
    """
    worst = 0.0
    for e, g in zip(expected, got, strict=True):
        common = e.keys() & g.keys()
        if len(common) < max(len(e), len(g)) - 1:
            return math.inf
        worst = max([worst, *(abs(e[t] - g[t]) for t in common)])
    return worst
