"""`/v1/models`: what can be asked for."""

import asyncio
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from pippin.api.access.exchange import exchange_of
from pippin.api.answers.answer import check_model
from pippin.api.context import Api, both, json_reply
from pippin.core.models import ModelInfo, ModelState

OWNER = "pippin"


def routes(api: Api) -> list[BaseRoute]:
    listing = Listing(api)
    return [*both("/models", listing.all), *both("/models/{id:path}", listing.one)]


@dataclass(frozen=True)
class Listing:
    api: Api

    async def all(self, request: Request) -> Response:
        found = await asyncio.to_thread(self.api.service.models)  # which looks at the disk
        if (key := exchange_of(request.scope).key) is not None:
            found = [info for info in found if key.rights.allows_model((info.id,), info.kind)]
        states = {state.id: state for state in self.api.service.pool.states()}
        data = [describe(info, states.get(info.id)) for info in found]
        return json_reply({"object": "list", "data": data})

    async def one(self, request: Request) -> Response:
        name = request.path_params["id"]
        info = await self.api.service.find(name)
        check_model(exchange_of(request.scope), name, info)
        states = {state.id: state for state in self.api.service.pool.states()}
        return json_reply(describe(info, states.get(info.id)))


def describe(info: ModelInfo, state: ModelState | None) -> dict[str, Any]:
    """A model in OpenAI's shape, with what the replaced servers and clients look for. No paths: they
    would tell of the operator's disk."""
    return {
        "id": info.id,
        "object": "model",
        "created": info.created,
        "owned_by": OWNER,
        "context_window": info.context_window,
        "max_model_len": info.context_window,
        "loaded": state is not None and state.state == "loaded",
        "state": state.state if state is not None else "unloaded",
        "kind": info.kind,
        "capabilities": msgspec.structs.asdict(info.capabilities),
        "metadata": {
            "architecture": info.architecture,
            "quantization": info.quantization,
            "dtype": info.dtype,
            "size_bytes": info.size_bytes,
            "tool_parser": info.tool_format,
            "reasoning_parser": info.reasoning_format,
            "dimensions": info.dimensions,
        },
    }
