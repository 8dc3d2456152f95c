"""The state of the engines, and what was used: `/v1/status`, `/v1/usage`, `/metrics`, and statistics."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec.structs import asdict, replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from pippin.api.access.exchange import Exchange, exchange_of
from pippin.api.routes.health import (
    current_state,
    name_of_default,
    options_for,
    options_of,
    worker_body,
)
from pippin.api.routing import Api, both, json_reply
from pippin.api.telemetry.ledger import Row, Used
from pippin.api.telemetry.recent import RecentRequests
from pippin.config.accelerator import memory_budget
from pippin.config.options.server import ServerOptions
from pippin.core.errors import ServerError
from pippin.core.models import CacheStats, EngineStats, ModelInfo, ModelState, RequestStatus


async def stats_of_loaded(api: Api, exchange: Exchange) -> dict[str, EngineStats]:
    """A snapshot of the statistics of each loaded model that the caller may use; the pool answers within a second at
    worst. A user's key is not told how others' prompts met the cache."""
    states = api.service.pool.states()
    loaded = [state.id for state in states if state.state == "loaded" and exchange.opens(state)]
    stats = await asyncio.gather(*(api.service.pool.stats(name) for name in loaded))
    if exchange.key is not None and not exchange.manages:
        stats = [replace(each, cache=CacheStats()) for each in stats]
    return dict(zip(loaded, stats, strict=True))


GIB = 1 << 30
MIB = 1 << 20


class UsageRow(Used, kw_only=True):
    key: Annotated[str | None, Meta(description="The name of the key; null for callers without one.")]
    model: str


class UsageReply(Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[UsageRow]


def routes(api: Api) -> list[BaseRoute]:
    pages = StatusPages(api)
    return [
        *both("/status", pages.status),
        *both("/usage", pages.usage, answer=UsageReply),
        *both("/queue/stats", pages.queue),
        *both("/cache/stats", pages.cache),
        *both("/moe-offload/stats", pages.experts),
        *both("/metrics", pages.metrics, media=["text/plain"]),
    ]


@dataclass(frozen=True)
class StatusPages:
    api: Api

    async def status(self, request: Request) -> Response:
        """The fields that vllm-mlx documents; figures are sums over all loaded models, totals count from the start.

        `requests` has the caller's own, and all of them for an administrator.
        """
        exchange = exchange_of(request.scope)
        states = list(filter(exchange.opens, self.api.service.pool.states()))
        stats = await stats_of_loaded(self.api, exchange)
        total = EngineStats.total(stats.values())
        options, answers = options_for(exchange, self.api.options), self.api.handler.answers
        current = current_state(states, options.models)
        return json_reply(
            {
                "status": engine_status(states),
                "model": name_of_default(current, options),
                "residency": residency_body(states, current, options),
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
                "metal": memory_body(total),
                "kv": {"bytes": total.kv_bytes, "limit_bytes": total.kv_limit_bytes},
                "cache": cache_body(total.cache),
                "mtp": speculation_body(total),
                "embedding": embedding_body(states, options, self.api.service.pool.info),
                "requests": [
                    request_body(each, model)
                    for model, engine in stats.items()
                    for each in engine.requests
                    if answers.may_see(exchange, each.id)
                ],
                "model_manager": {
                    "memory_budget_gb": options.memory_budget_gb,
                    "memory_limit_bytes": memory_budget(options),
                    "idle_unload_seconds": options.model_defaults.idle_timeout or 0.0,
                    "contention_policy": options.contention_policy,
                    "models": [
                        # vllm-mlx's names for the state.
                        worker_body(state) | {"status": state.state, "loaded": state.state == "loaded"}
                        for state in states
                    ],
                },
            }
        )

    async def usage(self, request: Request) -> Response:
        """What each key has used of each model over the server's life; to a user, what the own key has."""
        found = await self._used(exchange_of(request.scope))
        rows = [
            UsageRow(key=key or None, model=model, **asdict(used)) for (key, model), used in found.items()
        ]
        return json_reply(UsageReply(data=rows))

    async def _used(self, exchange: Exchange) -> dict[Row, Used]:
        """What the caller may see of the usage: nothing where a key is asked for and none is shown."""
        if exchange.anonymous:
            return {}
        own = None if exchange.manages or exchange.key is None else exchange.key.name
        found = await asyncio.to_thread(self.api.handler.answers.ledger.read)
        return {row: used for row, used in found.items() if own in (None, row[0])}

    async def queue(self, request: Request) -> Response:
        """The sums, again as mlx-openai-server nests them (its parts are the worker's line and the batch, which are one
        here), and each model's own."""
        stats = await stats_of_loaded(self.api, exchange_of(request.scope))
        total = EngineStats.total(stats.values())
        options = self.api.options.model_defaults
        own = {
            "queue_size": total.waiting,
            "max_queue_size": options.queue_size,
            "active_requests": total.running,
        }
        batches = own | {
            "running": bool(stats),
            "completion_batch_size": options.max_num_seqs,
            "disabled": options.max_num_seqs == 1,
        }
        return json_reply(
            {
                "status": "ok",
                "queue_stats": own
                | {
                    "running": total.running,
                    "max_concurrency": options.max_num_seqs,
                    "queue_stats": own | {"running": bool(stats)},
                    "batch_stats": batches,
                },
                "models": {
                    model: {"running": each.running, "waiting": each.waiting, "batch_size": each.batch_size}
                    for model, each in stats.items()
                },
            }
        )

    async def cache(self, request: Request) -> Response:
        """The sums as mlx_vlm.server has them, again as vllm-mlx's `engine_cache`, and each model's own."""
        stats = await stats_of_loaded(self.api, exchange_of(request.scope))
        options = self.api.options.model_defaults
        total = CacheStats.total(each.cache for each in stats.values())
        return json_reply(
            {"enabled": options.prefix_cache, "block_size": options.cache_block_tokens}
            | cache_body(total)
            | {"engine_cache": cache_body(total) if stats else None}
            | {"models": {model: cache_body(each.cache) for model, each in stats.items()}}
        )

    async def metrics(self, request: Request) -> Response:
        """Prometheus text if the operator enables it, or JSON under the profile of mlx_vlm.server."""
        api = self.api
        loaded = await stats_of_loaded(api, exchange_of(request.scope))
        uptime = time.time() - api.started
        if isinstance(api.observer, RecentRequests):
            return json_reply(api.observer.body(uptime, EngineStats.total(loaded.values())))
        if not api.options.enable_metrics:
            raise ServerError(
                "not_found", "Metrics are off; the operator turns them on with --enable-metrics."
            )
        from pippin.api.telemetry.metrics import Metrics, gauges, mcp_gauges, usage_counters

        assert isinstance(api.observer, Metrics)
        figures = gauges(api.service.pool.states(), loaded, uptime)
        used = await self._used(exchange_of(request.scope))
        figures += [*mcp_gauges(api.handler.tools.servers), *usage_counters(used)]
        # In a thread: hundreds of models and routes make tens of thousands of lines.
        text = await asyncio.to_thread(api.observer.render, figures)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def experts(self, request: Request) -> Response:
        """Tell clients of mlx_vlm.server that all experts are in memory."""
        return json_reply({"enabled": False})


def engine_status(states: list[ModelState]) -> str:
    """The status in vllm-mlx's words: `running` if a model is loaded, `stopped` if one has failed, else
    `not_loaded`."""
    if any(state.state == "loaded" for state in states):
        return "running"
    return "stopped" if any(state.state == "failed" for state in states) else "not_loaded"


def residency_body(
    states: list[ModelState], current: ModelState | None, options: ServerOptions
) -> dict[str, Any]:
    """The state of the model that `default` means, in vllm-mlx's form."""
    name = name_of_default(current, options)
    state = current or next((each for each in states if each.id == name), None)
    own = options_of(options, name) if name is not None else options.model_defaults
    return {
        "model_key": name,
        "model_name": name,
        "state": state.state if state is not None else "unloaded",
        "active_requests": state.active if state is not None else 0,
        "last_used_at": state.last_used if state is not None else None,
        "loaded_at": state.loaded_at if state is not None else None,
        "last_error": "model_load_failed" if state is not None and state.error is not None else None,
        "estimated_memory_bytes": state.footprint if state is not None else None,
        "auto_unload_idle_seconds": own.idle_timeout or 0.0,
    }


def embedding_body(
    states: list[ModelState], options: ServerOptions, info_of: Callable[[str], ModelInfo | None]
) -> dict[str, Any] | None:
    """The last used of the loaded embedding models; None if there is none. `max_length` is the limit in force,
    `max_length_ceiling` the operator's setting."""
    loaded = [state for state in states if state.kind == "embeddings" and state.state == "loaded"]
    if not loaded:
        return None
    last = max(loaded, key=lambda state: state.last_used or 0.0)
    own, info = options_of(options, last.id), info_of(last.id)
    window = info.context_window if info is not None else None
    return {
        "model": last.id,
        "loaded": True,
        "max_length": min(filter(None, (window, own.embedding_max_length)), default=None),
        "max_length_ceiling": own.embedding_max_length,
        "overflow_policy": own.embedding_overflow,
        "last_used_at": last.last_used,
    }


def memory_body(total: EngineStats) -> dict[str, float]:
    return {
        "active_memory_gb": round(total.active_bytes / GIB, 3),
        "peak_memory_gb": round(total.peak_bytes / GIB, 3),
        "cache_memory_gb": round(total.cached_bytes / GIB, 3),
    }


def speculation_body(total: EngineStats) -> dict[str, bool | int]:
    return {
        "enabled": total.draft_tokens > 0,
        "drafts": total.draft_tokens,
        "accepted": total.accepted_tokens,
    }


def cache_body(cache: CacheStats) -> dict[str, Any]:
    """Statistics of a prefix cache, under the names of both mlx-vlm and vllm-mlx."""
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
        "type": "memory_aware_cache",  # vllm-mlx's word for a cache sized in bytes
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
