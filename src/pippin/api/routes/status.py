"""`/v1/status`, `/v1/queue/stats`, `/v1/cache/stats`, `/v1/moe-offload/stats`: what goes on in the engines."""

import time
from dataclasses import dataclass
from typing import Any

from msgspec.structs import asdict
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from pippin.api.access.exchange import exchange_of
from pippin.api.context import Api, both, json_reply
from pippin.api.routes.health import current_state, residency, worker_body
from pippin.api.routes.metrics import stats_of_loaded
from pippin.config.options.server import ServerOptions
from pippin.core.models import CacheStats, EngineStats, ExpertStats, ModelState, RequestStatus

GIB = 1 << 30
MIB = 1 << 20


def routes(api: Api) -> list[BaseRoute]:
    pages = StatusPages(api)
    return [
        *both("/status", pages.status),
        *both("/queue/stats", pages.queue),
        *both("/cache/stats", pages.cache),
        *both("/moe-offload/stats", pages.experts),
    ]


@dataclass(frozen=True)
class StatusPages:
    api: Api

    async def status(self, request: Request) -> Response:
        """The fields that vllm-mlx documents; figures are sums over all loaded models, totals count from the start.

        `requests` has the caller's own, and all of them for an administrator.
        """
        states = self.api.service.pool.states()
        stats = await stats_of_loaded(self.api)
        total = EngineStats.total(stats.values())
        current = current_state(states, self.api.options.models)
        exchange = exchange_of(request.scope)
        options, answers = self.api.options, self.api.handler.answers
        return json_reply(
            {
                "status": engine_status(states),
                "model": current.id if current is not None else None,
                "residency": residency(states),
                "uptime_s": round(time.time() - self.api.started, 3),
                "steps_executed": total.steps,
                "num_running": total.running,
                "num_waiting": total.waiting,
                "total_requests_processed": answers.answered,
                "total_prompt_tokens": answers.prompt_tokens,
                "total_completion_tokens": answers.completion_tokens,
                "generation_tps": total.generation_tps,
                "prompt_tps": total.prompt_tps,
                "preemptions": total.preemptions,
                "metal": {
                    "active_memory_gb": round(total.active_bytes / GIB, 3),
                    "peak_memory_gb": round(total.peak_bytes / GIB, 3),
                    "cache_memory_gb": round(total.cached_bytes / GIB, 3),
                },
                "kv": {"bytes": total.kv_bytes, "limit_bytes": total.kv_limit_bytes},
                "cache": cache_body(total.cache),
                "mtp": {"drafts": total.draft_tokens, "accepted": total.accepted_tokens},
                "embedding": embedding_body(states, options),
                "requests": [
                    request_body(each, model)
                    for model, engine in stats.items()
                    for each in engine.requests
                    if answers.may_see(exchange, each.id)
                ],
                "model_manager": {
                    "memory_budget_gb": options.memory_budget_gb,
                    "idle_unload_seconds": options.model_defaults.idle_timeout or 0.0,
                    "contention_policy": options.contention_policy,
                    "models": [worker_body(state) for state in states],
                },
            }
        )

    async def queue(self, request: Request) -> Response:
        stats = await stats_of_loaded(self.api)
        total = EngineStats.total(stats.values())
        return json_reply(
            {
                "status": "ok",
                "queue_stats": {
                    "running": total.running,
                    "queue_size": total.waiting,
                    "active_requests": total.running,
                    "max_queue_size": self.api.options.model_defaults.queue_size,
                    "max_concurrency": self.api.options.model_defaults.max_num_seqs,
                },
                "models": {
                    model: {"running": each.running, "waiting": each.waiting, "batch_size": each.batch_size}
                    for model, each in stats.items()
                },
            }
        )

    async def cache(self, request: Request) -> Response:
        """The sums as mlx_vlm.server has them, again as vllm-mlx's `engine_cache`, and each model's own."""
        stats = await stats_of_loaded(self.api)
        options = self.api.options.model_defaults
        total = CacheStats.total(each.cache for each in stats.values())
        return json_reply(
            {"enabled": options.prefix_cache, "block_size": options.cache_block_tokens}
            | cache_body(total)
            | {"engine_cache": cache_body(total) if stats else None}
            | {"models": {model: cache_body(each.cache) for model, each in stats.items()}}
        )

    async def experts(self, request: Request) -> Response:
        """How experts that lie on the disk are used, as mlx_vlm.server has it: the sums, and each model's own."""
        stats = await stats_of_loaded(self.api)
        total = EngineStats.total(stats.values()).experts
        if total is None:
            return json_reply({"enabled": False})
        own = {model: each.experts for model, each in stats.items() if each.experts is not None}
        return json_reply(
            {"enabled": True}
            | experts_body(total)
            | {"models": {model: experts_body(each) for model, each in own.items()}}
        )


def experts_body(experts: ExpertStats) -> dict[str, Any]:
    return {**asdict(experts), "hit_rate": experts.hit_rate}


def engine_status(states: list[ModelState]) -> str:
    """vllm-mlx's words: `running` where a model is in memory, `stopped` where the last one died or could not be
    loaded, else `not_loaded`."""
    if any(state.state == "loaded" for state in states):
        return "running"
    return "stopped" if any(state.state == "failed" for state in states) else "not_loaded"


def embedding_body(states: list[ModelState], options: ServerOptions) -> dict[str, Any] | None:
    """The embedding model that was used last, of those in memory; None where there is none."""
    loaded = [state for state in states if state.kind == "embeddings" and state.state == "loaded"]
    if not loaded:
        return None
    last = max(loaded, key=lambda state: state.last_used or 0.0)
    return {
        "model": last.id,
        "loaded": True,
        "max_length": options.model_defaults.embedding_max_length,
        "overflow_policy": options.model_defaults.embedding_overflow,
        "last_used_at": last.last_used,
    }


def cache_body(cache: CacheStats) -> dict[str, Any]:
    """Figures of a prefix cache, under the names of both mlx-vlm and vllm-mlx."""
    return {
        "lookups_hit": cache.hits,
        "lookups_miss": cache.misses,
        "hits": cache.hits,
        "misses": cache.misses,
        "matched_tokens": cache.hit_tokens,
        "tokens_saved": cache.hit_tokens,
        "lookup_tokens": cache.lookup_tokens,
        "token_hit_rate": cache.hit_ratio,
        "hit_rate": cache.hits / (cache.hits + cache.misses) if cache.hits + cache.misses else 0.0,
        "type": "memory_aware_cache",  # vllm-mlx's word for one that is sized in bytes
        "entries": cache.entries,
        "memory_mb": round(cache.bytes / MIB, 2),
        "evictions": cache.evictions,
        "pool_used": cache.entries,
        "entry_count": cache.entries,
        "resident_bytes": cache.bytes,
        "memory_max_bytes": cache.limit_bytes,
        "utilization": cache.utilization,
        "disk_hits": cache.disk_hits,
        "disk_writes": cache.disk_writes,
        "disk_bytes": cache.disk_bytes,
        "disk_max_bytes": cache.disk_limit_bytes,
    }


def request_body(status: RequestStatus, model: str) -> dict[str, Any]:
    done = status.generated_tokens
    progress = done / status.max_tokens if status.max_tokens else None
    if status.phase == "prefill" and status.prompt_tokens:
        progress = status.prefilled_tokens / status.prompt_tokens
    return {
        "request_id": status.id,
        "model": model,
        "phase": status.phase,
        "tokens_per_second": status.tokens_per_second,
        "ttft_s": status.time_to_first_token,
        "elapsed_s": status.elapsed,
        "progress": progress,
        "cache_hit_type": hit_type(status),
        "prompt_tokens": status.prompt_tokens,
        "cached_tokens": status.cached_tokens,
        "generated_tokens": done,
        "max_tokens": status.max_tokens,
    }


def hit_type(status: RequestStatus) -> str:
    if not status.cached_tokens:
        return "miss"
    return "exact" if status.cached_tokens >= status.prompt_tokens - 1 else "prefix"
