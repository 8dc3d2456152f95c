"""What an engine counts, and the snapshot that it gives of itself."""

import time
from dataclasses import dataclass
from typing import Literal

import mlx.core as mx

from pippin.core.models import CacheStats, EngineStats, RequestStatus
from pippin.engines.language.step.batch import Batch
from pippin.engines.language.step.scheduler import Scheduler
from pippin.engines.language.step.sequences import Request
from pippin.engines.language.vision.sight import Sight

SMOOTHING = 0.2


@dataclass
class Counters:
    """Since the load. Rates are smoothed."""

    steps: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    preemptions: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    weight_bytes: int = 0
    generation_tps: float = 0.0
    prompt_tps: float = 0.0
    _completed_before: int = 0

    def step_done(self, seconds: float, prompt_tokens: int, decoded: bool) -> None:
        drawn = self.completion_tokens - self._completed_before
        self._completed_before = self.completion_tokens
        if seconds <= 0:
            return
        if decoded:
            self.generation_tps += SMOOTHING * (drawn / seconds - self.generation_tps)
        elif prompt_tokens:
            self.prompt_tps += SMOOTHING * (prompt_tokens / seconds - self.prompt_tps)


def engine_stats(
    counters: Counters,
    scheduler: Scheduler,
    batch: Batch,
    requests: list[Request],
    cache: CacheStats,
    sight: Sight | None,
) -> EngineStats:
    now = time.monotonic()
    return EngineStats(
        running=len(scheduler.phase("running")) + len(scheduler.phase("prefill")),
        waiting=len(scheduler.phase("waiting")),
        steps=counters.steps,
        prompt_tokens=counters.prompt_tokens,
        completion_tokens=counters.completion_tokens,
        preemptions=counters.preemptions,
        batch_size=len(batch.rows),
        kv_bytes=batch.groups.bytes,
        kv_limit_bytes=scheduler.limits.memory,
        weight_bytes=counters.weight_bytes,
        active_bytes=mx.get_active_memory(),
        peak_bytes=mx.get_peak_memory(),
        cached_bytes=mx.get_cache_memory(),
        draft_tokens=counters.draft_tokens,
        accepted_tokens=counters.accepted_tokens,
        media_encoded=0 if sight is None else sight.encoded,
        media_reused=0 if sight is None else sight.reused,
        generation_tps=counters.generation_tps,
        prompt_tps=counters.prompt_tps,
        cache=cache,
        requests=tuple(_status(request, now) for request in requests),
    )


def _status(request: Request, now: float) -> RequestStatus:
    job = request.job
    generated = sum(row.decoder.completion_tokens for row in request.rows)
    first = request.first_token
    phase: Literal["queued", "prefill", "generation"] = "queued"
    if request.admitted is not None:
        phase = "prefill" if request.computed is None else "generation"
    computed = max((prompt.ticket.computed for prompt in request.prompts), default=0)
    return RequestStatus(
        id=job.id,
        phase=phase,
        prompt_tokens=len(job.prompt),
        cached_tokens=request.cached,
        prefilled_tokens=computed if request.computed is None else len(job.prompt),
        generated_tokens=generated,
        max_tokens=job.max_tokens,
        elapsed=now - job.created,
        time_to_first_token=None if first is None else first - job.created,
        tokens_per_second=0.0 if first is None or now <= first else generated / (now - first),
    )
