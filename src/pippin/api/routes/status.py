"""The state of the server, and what was used.

`/health` and `/v1` say whether the server is up, and what it runs: they are answered from memory, without waiting.
`/v1/status`, `/v1/usage`, `/metrics` and the statistics ask the engines."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from msgspec import Struct
from msgspec.structs import asdict, replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from pippin import __version__
from pippin.api.access.exchange import Exchange, exchange_of
from pippin.api.answers.answer import Row, Used
from pippin.api.dialects.registry import VERSION
from pippin.api.dialects.shared.fields import about
from pippin.api.http.body import MIB
from pippin.api.routing import Api, both, json_reply
from pippin.api.telemetry.recent import RecentRequests
from pippin.config.accelerator import memory_budget
from pippin.config.options.model import ModelOptions
from pippin.config.options.server import ModelEntry, ServerOptions
from pippin.core.errors import ServerError
from pippin.core.models import CacheStats, EngineStats, ModelInfo, ModelKind, ModelState, RequestStatus

GIB: Final = 1 << 30
SAY_OK: Final = ("mlx-server", "mlx-openai-server")
"""The profiles whose servers report the status `ok`; the others report `healthy`."""
MLX_VLM_KINDS: Final[dict[ModelKind, str]] = {
    "language": "text_generation",
    "scripted": "text_generation",
    "embeddings": "embedding",
    "reranking": "reranker",
    "decisions": "decision",
    "transcription": "stt",
    "speech": "tts",
    "images": "image_generation",
}
"""mlx_vlm.server's words for kinds of models, by which its pages list the models in memory."""


def routes(api: Api) -> list[BaseRoute]:
    pages = StatusPages(api)
    return [
        *both("/health", pages.health),
        Route("/healthz", pages.health, methods=["GET"]),
        Route("/readyz", pages.ready, methods=["GET"]),
        Route(VERSION, welcome, methods=["GET"]),
        *both("/status", pages.status),
        *both("/usage", pages.usage, answer=UsageReply),
        *both("/queue/stats", pages.queue),
        *both("/cache/stats", pages.cache),
        *both("/moe-offload/stats", pages.experts),
        *both("/metrics", pages.metrics, media=["text/plain"]),
    ]


async def welcome(request: Request) -> Response:
    return json_reply({"name": "pippin", "version": __version__, "docs": "/docs", "models": "/v1/models"})


class StatusPages(Struct, frozen=True):
    api: Api

    async def health(self, request: Request) -> Response:
        """The fields of the replaced servers' health pages, and the state of each worker that the caller may use. Where
        keys are asked for and none is shown, models, errors and workers are left out."""
        exchange = exchange_of(request.scope)
        body = self._describe(exchange)
        if exchange.anonymous:
            for private in ("workers", "last_error"):
                body.pop(private, None)
        return json_reply(body)

    async def ready(self, request: Request) -> Response:
        """Whether requests should come here: 200 once each model that is loaded at the start has been loaded, else
        503. Loaded once is enough; one that is unloaded later comes back with the next request."""
        wanted = [entry.called for entry in self.api.options.models if entry.preload]
        ever = {state.id for state in self.api.service.pool.states() if state.loads}
        loaded = sum([await self._id_of(name) in ever for name in wanted])
        status = 200 if loaded == len(wanted) else 503
        return json_reply({"ready": status == 200, "loaded": loaded, "wanted": len(wanted)}, status)

    async def _id_of(self, name: str) -> str | None:
        """The id of a model that the operator named; None if it is not downloaded yet, or is damaged."""
        try:
            return (await self.api.service.names.find(name)).id
        except ServerError:
            return None

    def _describe(self, exchange: Exchange) -> dict[str, Any]:
        pool, profile = self.api.service.pool, self.api.settings.settings.compat
        options = options_for(exchange, self.api.options)
        states = [state for state in pool.states() if exchange.opens(state) and not exchange.anonymous]
        infos = {state.id: pool.info(state.id) for state in states}
        current = current_state(states, options.models)
        info = infos[current.id] if current is not None else None
        window = info.context_window if info is not None else None
        defaults = options.model_defaults
        adapters = adapters_of(states, options)
        return {
            "status": "ok" if profile in SAY_OK else "healthy",
            "version": __version__,
            "loaded_model": current.id if current is not None else None,
            "loaded_adapter": adapters.get(current.id) if current is not None else None,
            "loaded_models": loaded_models(states, adapters, by_kind=profile == "mlx-vlm"),
            "workers": [worker_body(state) for state in states],
            "loaded_context_size": window,
            "configured_context_limit": defaults.context_length,
            "effective_context_limit": min(filter(None, (window, defaults.context_length)), default=None),
            "loaded_tool_parser": info.tool_format if info is not None else None,
            "loaded_reasoning_parser": info.reasoning_format if info is not None else None,
            "continuous_batching_enabled": True,
            "apc_enabled": defaults.prefix_cache,
            "model_loaded": current is not None,
            "model_name": name_of_default(current, options),
            "model_id": current.id if current is not None else None,
            "model_status": "initialized" if current is not None else "uninitialized",
            "available_models": available(states, options),
            "model_type": model_type(info),
            "engine_type": "batched",
            "residency_state": residency(states),
            "active_requests": sum(state.active for state in states),
            "last_used_at": max((state.last_used for state in states if state.last_used), default=None),
            "loaded_at": current.loaded_at if current is not None else None,
            "auto_unload_idle_seconds": defaults.idle_timeout or 0.0,
            "last_error": next((state.error.message for state in states if state.error is not None), None),
            "mcp": self._mcp(),
        }

    def _mcp(self) -> dict[str, Any] | None:
        servers = self.api.handler.tools.servers
        if not servers:
            return None
        return {
            "enabled": True,
            "servers_connected": servers.connected,
            "servers_total": len(servers.connections),
            "tools_available": len(servers.tools()),
        }

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
                "total_requests_processed": answers.total.requests,
                "total_prompt_tokens": answers.total.prompt_tokens,
                "total_completion_tokens": answers.total.completion_tokens,
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
        found = await asyncio.to_thread(self.api.ledger.read)
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


def options_for(exchange: Exchange, options: ServerOptions) -> ServerOptions:
    """The options with the models alone that the caller may know of."""
    models = () if exchange.anonymous else tuple(filter(exchange.opens, options.models))
    return replace(options, models=models)


def current_state(states: list[ModelState], models: Sequence[ModelEntry]) -> ModelState | None:
    """The state of the loaded model that `default` means to a chat: language models first, then by the order of
    `models`, the operator's entries, then the one loaded last."""
    served = [entry for entry in models if entry.listed]

    def rank(state: ModelState) -> tuple[bool, int, float]:
        place = next((place for place, entry in enumerate(served) if entry.is_of(state.id)), len(served))
        return state.kind in ("language", "scripted"), -place, state.loaded_at or 0.0

    return max((state for state in states if state.state == "loaded"), key=rank, default=None)


def options_of(options: ServerOptions, model: str) -> ModelOptions:
    """The options of a model by its id: from the operator's entry for it, or else the defaults for all models."""
    own = (entry.options for entry in options.models if entry.is_of(model))
    return next(own, options.model_defaults)


def name_of_default(current: ModelState | None, options: ServerOptions) -> str | None:
    """The model that `default` means to a chat, in memory (`current`) or not, as vllm-mlx reports it; None if the
    operator named no language model."""
    if current is not None:
        return current.id
    writes = ("language", "scripted", None)
    return next((entry.called for entry in options.models if entry.listed and entry.kind in writes), None)


def available(states: list[ModelState], options: ServerOptions) -> list[str]:
    """The names that the operator gave, as vllm-mlx reports them, and all other models in memory."""
    named = [entry.called for entry in options.models if entry.listed]
    return list(dict.fromkeys([*named, *(state.id for state in states)]))


def adapters_of(states: list[ModelState], options: ServerOptions) -> dict[str, str]:
    """The operator's own adapter of each model, by the model's id."""
    found = {state.id: options_of(options, state.id).adapter_path for state in states}
    return {model: adapter for model, adapter in found.items() if adapter is not None}


def loaded_models(
    states: list[ModelState], adapters: Mapping[str, str], *, by_kind: bool = False
) -> dict[str, Any]:
    """The models in memory by id. With `by_kind`, the last used model of each kind, by mlx_vlm.server's word for the
    kind, as that server's pages list them."""
    loaded = sorted(
        (state for state in states if state.state == "loaded"), key=lambda state: state.last_used or 0
    )
    return {
        MLX_VLM_KINDS[state.kind] if by_kind else state.id: {
            "model": state.id,
            "adapter": adapters.get(state.id),
            "model_kind": MLX_VLM_KINDS[state.kind] if by_kind else state.kind,
        }
        for state in loaded
    }


def worker_body(state: ModelState) -> dict[str, Any]:
    facts = asdict(state)
    error, facts["last_used_at"] = facts.pop("error"), facts.pop("last_used")
    facts["footprint_bytes"] = facts.pop("footprint")
    return facts | {"last_error": None if error is None else error.message}


def model_type(info: ModelInfo | None) -> str | None:
    if info is None:
        return None
    return "mllm" if info.capabilities.images else "llm"


def residency(states: list[ModelState]) -> str:
    found = {state.state for state in states}
    return next((each for each in ("loaded", "loading", "unloading", "failed") if each in found), "unloaded")


async def stats_of_loaded(api: Api, exchange: Exchange) -> dict[str, EngineStats]:
    """A snapshot of the statistics of each loaded model that the caller may use; the pool answers within a second at
    worst. A user's key is not told how others' prompts met the cache."""
    states = api.service.pool.states()
    loaded = [state.id for state in states if state.state == "loaded" and exchange.opens(state)]
    stats = await asyncio.gather(*(api.service.pool.stats(name) for name in loaded))
    if exchange.key is not None and not exchange.manages:
        stats = [replace(each, cache=CacheStats()) for each in stats]
    return dict(zip(loaded, stats, strict=True))


class UsageRow(Used, kw_only=True):
    key: Annotated[str | None, about("The name of the key; null for callers without one.")]
    model: str


class UsageReply(Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[UsageRow]


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
    hit = "exact" if status.cached_tokens >= status.prompt_tokens - 1 else "prefix"
    return {
        "request_id": status.id,
        "model": model,
        "phase": status.phase,
        "tokens_per_second": status.tokens_per_second,
        "ttft_s": status.time_to_first_token,
        "elapsed_s": status.elapsed,
        "progress": progress,
        "cache_hit_type": hit if status.cached_tokens else "miss",
        "prompt_tokens": status.prompt_tokens,
        "cached_tokens": status.cached_tokens,
        "generated_tokens": done,
        "max_tokens": status.max_tokens,
    }
