"""What an engine reports about itself and the requests that it holds."""

import time
from typing import Literal

import mlx.core as mx
import mlx.nn as nn

from pippin.core.models import EngineStats, RequestStatus
from pippin.engines.language.prefix_cache.cache import Prefixes
from pippin.engines.language.step.batch import Batch
from pippin.engines.language.step.decoding import Counters
from pippin.engines.language.step.lifecycle import Lifecycle
from pippin.engines.language.step.scheduler import Scheduler
from pippin.engines.language.step.sequences import Prefilling, Request
from pippin.engines.language.vision.encoder import Vision


def engine_stats(
    counters: Counters,
    scheduler: Scheduler,
    lifecycle: Lifecycle,
    batch: Batch,
    model: nn.Module,
    prefixes: Prefixes,
    vision: Vision,
) -> EngineStats:
    now = time.monotonic()
    return EngineStats(
        running=len(scheduler.running) + len(scheduler.prefilling),
        waiting=len(scheduler.waiting),
        steps=counters.steps,
        prompt_tokens=counters.prompt_tokens,
        completion_tokens=lifecycle.completion_tokens,
        preemptions=lifecycle.preemptions,
        batch_size=len(batch.running),
        kv_bytes=batch.groups.bytes,
        kv_limit_bytes=scheduler.limits.memory,
        longest_sequence=scheduler.longest(),
        weight_bytes=counters.weight_bytes,
        active_bytes=mx.get_active_memory(),
        peak_bytes=mx.get_peak_memory(),
        cached_bytes=mx.get_cache_memory(),
        agreement=counters.agreement,
        draft_tokens=counters.draft_tokens,
        accepted_tokens=counters.accepted_tokens,
        forced_tokens=lifecycle.forced_tokens,
        draft_seconds=counters.draft_seconds,
        media_encoded=vision.encoded,
        media_reused=vision.reused,
        generation_tps=counters.generation_tps,
        prompt_tps=counters.prompt_tps,
        cache=prefixes.stats(),
        requests=tuple(request_status(request, now) for request in lifecycle.live),
    )


def request_status(request: Request, now: float) -> RequestStatus:
    job = request.job
    generated = sum(each.decoder.completion_tokens for each in request.sequences)
    first = request.first_token
    phase: Literal["queued", "prefill", "generation"] = "queued"
    if request.admitted is not None:
        phase = "prefill" if request.prefilled is None else "generation"
    stages = [each.stage for each in request.sequences]
    computed = max((stage.computed for stage in stages if isinstance(stage, Prefilling)), default=0)
    return RequestStatus(
        id=job.id,
        phase=phase,
        prompt_tokens=len(job.prompt),
        cached_tokens=request.cached_tokens,
        prefilled_tokens=computed if request.prefilled is None else len(job.prompt),
        generated_tokens=generated,
        max_tokens=job.max_tokens,
        elapsed=now - job.created,
        time_to_first_token=None if first is None else first - job.created,
        tokens_per_second=0.0 if first is None or now <= first else generated / (now - first),
    )
