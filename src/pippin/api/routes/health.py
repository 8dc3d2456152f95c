"""`/health` and `/v1`: whether the server is up, and what it runs. Answered from memory, without waiting."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from pippin import __version__
from pippin.api.access.exchange import Exchange, exchange_of
from pippin.api.routing import VERSION, Api, both, json_reply
from pippin.config.options.model import ModelOptions
from pippin.config.options.server import ModelEntry, ServerOptions
from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo, ModelKind, ModelState

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
    health = Health(api)
    return [
        *both("/health", health.show),
        Route("/healthz", health.show, methods=["GET"]),
        Route("/readyz", health.ready, methods=["GET"]),
        Route(VERSION, welcome, methods=["GET"]),
    ]


async def welcome(request: Request) -> Response:
    return json_reply({"name": "pippin", "version": __version__, "docs": "/docs", "models": "/v1/models"})


@dataclass(frozen=True)
class Health:
    api: Api

    async def show(self, request: Request) -> Response:
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
            return (await self.api.service.find(name)).id
        except ServerError:
            return None

    def _describe(self, exchange: Exchange) -> dict[str, Any]:
        pool, profile = self.api.service.pool, self.api.settings.settings.compat
        states = [state for state in pool.states() if exchange.opens(state) and not exchange.anonymous]
        models = () if exchange.anonymous else tuple(filter(exchange.opens_entry, self.api.options.models))
        options = replace(self.api.options, models=models)
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
        connected = sum(connection.state == "connected" for connection in servers.connections)
        return {
            "enabled": True,
            "servers_connected": connected,
            "servers_total": len(servers.connections),
            "tools_available": len(servers.tools()),
        }


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
    error = state.error
    return {
        "id": state.id,
        "kind": state.kind,
        "state": state.state,
        "stage": state.stage,
        "progress": state.progress,
        "pinned": state.pinned,
        "active": state.active,
        "last_used_at": state.last_used,
        "loaded_at": state.loaded_at,
        "load_seconds": state.load_seconds,
        "footprint_bytes": state.footprint,
        "pid": state.pid,
        "restarts": state.restarts,
        "last_error": None if error is None else error.message,
    }


def model_type(info: ModelInfo | None) -> str | None:
    if info is None:
        return None
    return "mllm" if info.capabilities.images else "llm"


def residency(states: list[ModelState]) -> str:
    for wanted in ("loaded", "loading", "unloading", "failed"):
        if any(state.state == wanted for state in states):
            return wanted
    return "unloaded"
