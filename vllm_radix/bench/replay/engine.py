# SPDX-License-Identifier: Apache-2.0
"""vLLM's engine loop around a real scheduler, in virtual time and with a model that knows its text.

A step takes as long as the cost model says, whatever the scheduler took; the scheduler's own time
is measured besides.
"""

import gc
import hashlib
import heapq
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from vllm_radix.bench.replay.cost import CostModel
from vllm_radix.bench.replay.schedulers import EvictionCounter, block_hasher
from vllm_radix.bench.replay.sessions import Call, Session, Tokens, Workload

# A step may be empty though the next one is not: its only request was preempted in it.
_MAX_EMPTY_STEPS = 10


class StuckError(RuntimeError):
    """The scheduler schedules nothing although requests wait."""


@dataclass
class RequestRecord:
    """What happened to a request. Times are virtual, in seconds from the start."""

    call: Call
    arrival: float
    first_token: float | None = None
    finish: float | None = None
    num_cached_tokens: int = 0
    """Prompt tokens that its first admission found in the cache."""
    num_preemptions: int = 0

    @property
    def ttft(self) -> float | None:
        """Seconds from arrival to first token."""
        return None if self.first_token is None else self.first_token - self.arrival


@dataclass
class _Progress:
    """Where a session is."""

    session: Session
    turn: int = 0
    num_unanswered: int = 0


@dataclass
class _Live:
    """A request in the scheduler."""

    request: Request
    record: RequestRecord
    answer: list[int]
    progress: _Progress


@dataclass
class Replay:
    """One run of a workload; :meth:`run` may be interrupted, and what happened so far is there."""

    workload: Workload
    scheduler: Scheduler
    cost: CostModel
    session_ids: bool = False
    """Whether requests carry their session's name as ``session_id``."""
    on_progress: Callable[[int], None] = lambda num_finished: None
    """Called now and then with how many requests have finished."""

    now: float = 0.0
    """Virtual seconds from the start."""
    records: list[RequestRecord] = field(default_factory=list)
    """In order of arrival."""
    num_finished: int = 0
    step_seconds: list[float] = field(default_factory=list)
    """Real time that the scheduler took for each step, from ``schedule()`` to its last update."""

    def __post_init__(self) -> None:
        self.evictions = EvictionCounter(self.scheduler)
        admission = getattr(self.scheduler, "admission", None)
        if admission is not None:
            admission.clock = lambda: self.now
        self._hasher = block_hasher(self.scheduler, self.scheduler.block_size)
        self._make_room_for_images()
        self._live: dict[str, _Live] = {}
        self._order = itertools.count()
        self._num_empty_steps = 0
        self._due: list[tuple[float, int, _Progress]] = []
        for session in self.workload.sessions:
            self._send_later(session.start, _Progress(session))
        # All prompts share these int objects: a queue of thousands of long prompts would take
        # three times the memory with objects of their own.
        self._ids = list(range(1 + max(int(call.prompt.max()) for call in self.workload.calls())))

    def run(self) -> None:
        """Serve every request.

        Raises:
            StuckError: the scheduler does not.
        """
        # As the engine core does: what exists by now is no garbage.
        gc.collect()
        gc.freeze()
        try:
            while self._due or self._live:
                if not self._live:
                    self.now = max(self.now, self._due[0][0])
                while self._due and self._due[0][0] <= self.now:
                    due, _, progress = heapq.heappop(self._due)
                    self._send(progress, due)
                self._step()
        finally:
            gc.unfreeze()

    def _make_room_for_images(self) -> None:
        # The model is one of text; with room for what is encoded, the scheduler takes images, too.
        most = max(
            (span.stop - span.start for call in self.workload.calls() for span in call.images),
            default=0,
        )
        if most:
            room = max(most, self.scheduler.scheduler_config.max_num_batched_tokens)
            self.scheduler.max_num_encoder_input_tokens = room
            self.scheduler.encoder_cache_manager = EncoderCacheManager(room)

    def _send_later(self, due: float, progress: _Progress) -> None:
        heapq.heappush(self._due, (due, next(self._order), progress))

    def _send(self, progress: _Progress, due: float) -> None:
        session = progress.session
        calls = session.turns[progress.turn].calls
        progress.num_unanswered = len(calls)
        for number, call in enumerate(calls):
            record = RequestRecord(call, due)
            self.records.append(record)
            request = Request(
                request_id=f"{session.name}/{progress.turn}/{number}",
                prompt_token_ids=[self._ids[token] for token in _seen(call).tolist()],
                mm_features=_items(call),
                sampling_params=SamplingParams(max_tokens=len(call.answer), ignore_eos=True),
                pooling_params=None,
                arrival_time=due,
                block_hasher=self._hasher,
                session_id=session.name if self.session_ids else None,
            )
            self._live[request.request_id] = _Live(request, record, call.answer.tolist(), progress)
            self.scheduler.add_request(request)

    def _step(self) -> None:
        started = time.perf_counter()
        scheduled = self.scheduler.schedule()
        took = time.perf_counter() - started
        if scheduled.total_num_scheduled_tokens:
            self._num_empty_steps = 0
        else:
            self._skip_empty_step()
        output = self._execute(scheduled)
        started = time.perf_counter()
        batches = self.scheduler.update_from_output(scheduled, output)
        self.step_seconds.append(took + time.perf_counter() - started)
        for batch in batches.values():
            for one in batch.outputs:
                live = self._live[one.request_id]
                if one.prefill_stats is not None:
                    live.record.num_cached_tokens = one.prefill_stats.num_cached_tokens
                if live.record.first_token is None:
                    live.record.first_token = self.now
                if one.finish_reason is not None:
                    self._finish(one.request_id)

    def _skip_empty_step(self) -> None:
        """After several in a row, let time pass until there is another request."""
        self._num_empty_steps += 1
        if self._num_empty_steps < _MAX_EMPTY_STEPS:
            return
        if not self._due:
            raise StuckError(
                f"In {_MAX_EMPTY_STEPS} steps the scheduler schedules nothing although "
                f"{len(self._live)} requests wait."
            )
        self._num_empty_steps = 0
        self.now = max(self.now, self._due[0][0])

    def _execute(self, scheduled: SchedulerOutput) -> ModelRunnerOutput:
        """Let the step's time pass; the answers' next tokens."""
        num_computed = {new.req_id: new.num_computed_tokens for new in scheduled.scheduled_new_reqs}
        cached = scheduled.scheduled_cached_reqs
        num_computed.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        num_prefill = num_decoding = num_attended = 0
        sampled = []
        for request_id, num_tokens in scheduled.num_scheduled_tokens.items():
            live = self._live[request_id]
            before = num_computed[request_id]
            if num_tokens == 1 and before >= live.request.num_prompt_tokens:
                num_decoding += 1
            else:
                num_prefill += num_tokens
                num_attended += num_tokens * (before + num_tokens)
            is_last_chunk = before + num_tokens == live.request.num_tokens
            next_token = live.request.num_output_tokens
            sampled.append([live.answer[next_token]] if is_last_chunk else [])
        if sampled:
            self.now += self.cost.step_time(num_prefill, num_decoding, num_attended)
        request_ids = list(scheduled.num_scheduled_tokens)
        return ModelRunnerOutput(
            req_ids=request_ids,
            req_id_to_index={request_id: row for row, request_id in enumerate(request_ids)},
            sampled_token_ids=sampled,
        )

    def _finish(self, request_id: str) -> None:
        live = self._live.pop(request_id)
        live.record.finish = self.now
        live.record.num_preemptions = live.request.num_preemptions
        progress = live.progress
        progress.num_unanswered -= 1
        if not progress.num_unanswered:
            progress.turn += 1
            if progress.turn < len(progress.session.turns):
                think_time = progress.session.turns[progress.turn].think_time
                self._send_later(self.now + think_time, progress)
        self.num_finished += 1
        self.on_progress(self.num_finished)


_PLACEHOLDER = 0


def _seen(call: Call) -> Tokens:
    """The prompt as a tokenizer gives it: all images alike."""
    if not call.images:
        return call.prompt
    seen = call.prompt.copy()
    for span in call.images:
        seen[span.start : span.stop] = _PLACEHOLDER
    return seen


def _items(call: Call) -> list[MultiModalFeatureSpec]:
    return [
        MultiModalFeatureSpec(
            data=None,
            modality="image",
            identifier=hashlib.sha256(call.prompt[span.start : span.stop].tobytes()).hexdigest(),
            mm_position=PlaceholderRange(offset=span.start, length=span.stop - span.start),
        )
        for span in call.images
    ]
