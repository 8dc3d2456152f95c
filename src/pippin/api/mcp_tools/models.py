"""The tools `list_models`, `load_model` and `unload_model`."""

import asyncio
from typing import Annotated, Final

from msgspec import Meta, Struct

from pippin.api.dialects.shared.engine_fields import Name
from pippin.api.mcp_tools.tool import Call, Done, Tool
from pippin.core.models import ModelInfo, ModelKind


class ListArguments(Struct, kw_only=True):
    kind: Annotated[ModelKind | None, Meta(description="Only models of this kind.")] = None


class ListedModel(Struct, kw_only=True):
    id: Annotated[str, Meta(description="The name by which the other tools ask for it.")]
    kind: ModelKind
    state: Annotated[str, Meta(description="loaded, loading, unloaded, failed or not_downloaded.")]
    context_window: Annotated[int | None, Meta(description="Tokens of prompt and answer.")]
    size_bytes: int
    quantization: str | None
    sees_images: bool
    reasons: Annotated[bool, Meta(description="It thinks before it answers.")]


class ListedModels(Struct, kw_only=True):
    models: list[ListedModel]


class ModelName(Struct, kw_only=True):
    model: Annotated[Name, Meta(description="The id of a model, as `list_models` shows it.")]


class ModelLoaded(Struct, kw_only=True):
    model: str
    state: str
    load_seconds: float | None


class ModelUnloaded(Struct, kw_only=True):
    model: str
    unloaded: Annotated[bool, Meta(description="False where it was not in memory.")]


async def list_models(call: Call, arguments: ListArguments) -> Done:
    """The models that the caller's key opens, as `GET /v1/models` shows them."""
    service = call.api.service
    found = [(info, "unloaded") for info in await asyncio.to_thread(service.models)]
    found += [(info, "not_downloaded") for info in await asyncio.to_thread(service.missing)]
    states = {state.id: state.state for state in service.pool.states()}
    key = call.exchange.key
    shown = [
        _listed(info, states.get(info.id, state))
        for info, state in found
        if (key is None or key.rights.allows_model((info.id,), info.kind))
        and arguments.kind in (None, info.kind)
    ]
    return Done(result=ListedModels(models=shown))


def _listed(info: ModelInfo, state: str) -> ListedModel:
    return ListedModel(
        id=info.id,
        kind=info.kind,
        state=state,
        context_window=info.context_window,
        size_bytes=info.size_bytes,
        quantization=info.quantization,
        sees_images=info.capabilities.images,
        reasons=info.capabilities.reasoning,
    )


async def load_model(call: Call, arguments: ModelName) -> Done:
    info = await call.api.service.find(arguments.model)
    async with call.telling(info.id, lambda: "Nearly done."):
        state = await call.api.service.pool.load(arguments.model)
    return Done(result=ModelLoaded(model=state.id, state=state.state, load_seconds=state.load_seconds))


async def unload_model(call: Call, arguments: ModelName) -> Done:
    info = await call.api.service.find(arguments.model)
    unloaded = await call.api.service.pool.unload(arguments.model)
    return Done(result=ModelUnloaded(model=info.id, unloaded=unloaded))


LIST_MODELS: Final = Tool(
    "list_models",
    "List models",
    "The models that this machine can run, what each is for, and whether it is in memory.",
    ListArguments,
    ListedModels,
    list_models,
)
LOAD_MODEL: Final = Tool(
    "load_model",
    "Load a model",
    "Loads a model into memory, so that the next question need not wait for it. Others may have to make room.",
    ModelName,
    ModelLoaded,
    load_model,
    manages=True,
)
UNLOAD_MODEL: Final = Tool(
    "unload_model",
    "Unload a model",
    "Takes a model out of memory once it has answered what was asked of it.",
    ModelName,
    ModelUnloaded,
    unload_model,
    manages=True,
    destructive=True,
)
