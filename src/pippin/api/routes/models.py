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
from pippin.core.errors import ServerError
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
        found = [info for info in found if self._may_see(request, info)]
        states = {state.id: state for state in self.api.service.pool.states()}
        data = [describe(info, states.get(info.id)) for info in found]
        missing = await asyncio.to_thread(self.api.service.missing)
        data += [describe(info, None, downloaded=False) for info in missing if self._may_see(request, info)]
        return json_reply({"object": "list", "data": data})

    def _may_see(self, request: Request, info: ModelInfo) -> bool:
        key = exchange_of(request.scope).key
        return key is None or key.rights.allows_model((info.id,), info.kind)

    async def one(self, request: Request) -> Response:
        name = request.path_params["id"]
        try:
            info = await self.api.service.find(name)
        except ServerError:
            missing = await asyncio.to_thread(self.api.service.missing)
            named = next((each for each in missing if each.id == name and self._may_see(request, each)), None)
            if named is None:
                raise
            return json_reply(describe(named, None, downloaded=False))
        check_model(exchange_of(request.scope), name, info)
        states = {state.id: state for state in self.api.service.pool.states()}
        return json_reply(describe(info, states.get(info.id)))


def describe(info: ModelInfo, state: ModelState | None, *, downloaded: bool = True) -> dict[str, Any]:
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
        "state": state.state if state is not None else "unloaded" if downloaded else "not_downloaded",
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
