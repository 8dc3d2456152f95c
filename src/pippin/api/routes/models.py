"""`/v1/models`: the models that can be requested."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from pippin.api.access.errors import ANTHROPIC
from pippin.api.access.exchange import exchange_of
from pippin.api.dialects.shared.fields import about, decode_json, invalid
from pippin.api.routing import Api, both, json_reply
from pippin.config.accelerator import memory_budget
from pippin.config.options.start import Compat
from pippin.config.verified import last_report
from pippin.core.models import PURPOSES, EngineStats, HubModel, ModelInfo, ModelState

EFFORTS: Final = ("low", "medium", "high", "xhigh", "max")
EDITS: Final = ("clear_thinking_20251015", "clear_tool_uses_20250919", "compact_20260112")


def as_anthropic(info: ModelInfo, length: int | None, *, searches: bool) -> dict[str, Any]:
    """The fields that Anthropic's clients read besides the common ones. `length` is the context length in tokens,
    prompt and answer together. A capability is false if a Messages request that uses it is refused here, or if it has
    no effect."""
    can = info.capabilities
    answers, thinks, never = _said(can.chat), _said(can.reasoning), _said(False)
    server = _said(can.tools and searches)
    capabilities = {
        "batch": never,
        "citations": never,
        "code_execution": never,
        "compaction": answers | {"summarize": answers},
        "context_management": never | dict.fromkeys(EDITS, never),
        "effort": thinks | dict.fromkeys(EFFORTS, thinks),
        "image_input": _said(can.images),
        "pdf_input": answers,
        "server_tools": server | {"code_execution": never, "web_search": server},
        "structured_outputs": answers,
        "thinking": thinks
        | {"types": {"adaptive": thinks, "enabled": thinks, "between_tools": answers, "disabled": answers}},
    }
    return {
        "capabilities": capabilities,
        "lifecycle": "active",
        **dict.fromkeys(("deprecated_at", "retires_at", "line")),
        **dict.fromkeys(("max_input_tokens", "max_tokens"), length),
    }


def as_typesafe(info: ModelInfo) -> dict[str, str]:
    day = datetime.fromtimestamp(info.created, UTC).date().isoformat()
    return {"name": info.id, "description": f"A model of kind {info.kind}.", "release_date": day}


def _said(supported: bool) -> dict[str, Any]:
    return {"supported": supported}


TYPESAFE: Final = "x-typesafe-sdk"
"""The header that TypeSafe's clients send, which read a list of their own."""
OWNER = "pippin"
OWNERS: Final[dict[Compat, str]] = {
    "mlx-server": "local",
    "mlx-openai-server": "local",
    "vllm-mlx": "vllm-mlx",
}
"""The replaced servers' values of `owned_by`, by which some clients group models."""
MOST = 1000  # models in one answer


def routes(api: Api) -> list[BaseRoute]:
    listing = Listing(api)
    return [
        *both("/models", listing.all),
        *both("/models/search", listing.search, "POST", body=HubSearch, answer=HubModels),
        *both("/models/recommended", listing.recommended),
        *both("/models/{id:path}", listing.one),
    ]


class HubSearch(Struct, kw_only=True):
    """A search on the hub."""

    search: Annotated[str, about("Words of a model's name.", min_length=1, max_length=200)]
    limit: Annotated[int, about("How many, the most downloaded first.", ge=1, le=100)] = 20
    all: Annotated[bool, about("Models without the hub's tag `mlx` too.")] = False


class FoundModel(HubModel, frozen=True, kw_only=True):
    """A repository on the hub."""

    here: bool  # whether it is downloaded


class HubModels(Struct, kw_only=True):
    """The repositories that were found."""

    data: list[FoundModel]
    object: Literal["list"] = "list"


class Listing(Struct, frozen=True):
    api: Api

    async def all(self, request: Request) -> Response:
        if any(request.query_params.getlist("model_dir")):
            raise invalid(
                "model_dir", "is not honoured: the operator names the folders of models, with --model-dir."
            )
        found = await asyncio.to_thread(self.api.service.models)  # reads the disk
        missing = await asyncio.to_thread(self.api.service.catalog.missing)
        claude = await asyncio.to_thread(self.api.service.names.claude_names)
        here = {info.id: info for info in found} | claude
        opened = exchange_of(request.scope).opens
        named = [msgspec.structs.replace(info, id=name) for name, info in claude.items() if opened(info)]
        page, more = page_of([*filter(opened, (*found, *missing)), *named], request.query_params)
        data = [await self._described(request, here.get(info.id, info)) | {"id": info.id} for info in page]
        first, last = (page[0].id, page[-1].id) if page else (None, None)
        if TYPESAFE in request.headers:
            return json_reply({"models": list(map(as_typesafe, page))})
        return json_reply(
            {"object": "list", "data": data, "has_more": more, "first_id": first, "last_id": last}
        )

    async def one(self, request: Request) -> Response:
        info = await self.api.model(request, request.path_params["id"], here=False)
        return json_reply(await self._described(request, info))

    async def recommended(self, request: Request) -> Response:
        """Models of the list that ships with Pippin, by purpose (`for`): code, chat, vision or embed."""
        asked = request.query_params.get("for", "chat")
        purpose = next((each for each in PURPOSES if each == asked), None)
        if purpose is None:
            raise invalid("for", f"must be one of {', '.join(PURPOSES)}.")
        found = await asyncio.to_thread(self.api.service.catalog.suited, purpose)
        return json_reply({"object": "list", "data": found, "memory_bytes": memory_budget(self.api.options)})

    async def search(self, request: Request) -> Response:
        """Models on the hub, for whoever may fetch them: what is found may be the operator's own."""
        asked = decode_json(await self.api.small_body(request), HubSearch)
        found = await self.api.service.catalog.search(asked.search, limit=asked.limit, mlx_only=not asked.all)
        here = {info.id for info in await asyncio.to_thread(self.api.service.models)}
        data = [FoundModel(**msgspec.structs.asdict(each), here=each.id in here) for each in found]
        return json_reply(HubModels(data=data))

    async def _described(self, request: Request, info: ModelInfo) -> dict[str, Any]:
        """A model for its client: Anthropic's clients, known by a header, get Anthropic's `capabilities`; `owned_by` is
        the value of the profile's server."""
        pool = self.api.service.pool
        state = next((state for state in pool.states() if state.id == info.id), None)
        stats = EngineStats()
        if state is not None and state.state == "loaded":
            stats = await pool.stats(info.id)
        verified = await asyncio.to_thread(verification, info.id, whole=exchange_of(request.scope).manages)
        described = describe(info, state, stats.longest_sequence)
        described |= {"verification": verified, "agreement": stats.agreement or None}
        compat = self.api.settings.settings.compat
        if compat in OWNERS:
            described |= {"owned_by": OWNERS[compat]}
        if ANTHROPIC not in request.headers:
            return described
        searches = self.api.options.web_search is not None
        return described | as_anthropic(info, described["context_length"], searches=searches)


def page_of(found: list[ModelInfo], asked: Mapping[str, str]) -> tuple[list[ModelInfo], bool]:
    """The page of a list selected by Anthropic's `after_id`, `before_id` and `limit`, and whether there are more models
    beyond it. Raises `ServerError` naming a parameter that can't be honoured."""
    ids = [info.id for info in found]
    places = {name: ids.index(asked[name]) for name in ("after_id", "before_id") if asked.get(name) in ids}
    for name in ("after_id", "before_id"):
        if name in asked and name not in places:
            raise invalid(name, "is the id of no model in this list.")
    if len(places) == 2:
        raise invalid("before_id", "can't be combined with `after_id`.")
    limit = asked.get("limit", str(MOST))
    if not limit.isdecimal() or not 1 <= int(limit[:9]) <= MOST:
        raise invalid("limit", f"must be a number from 1 to {MOST}.")
    if "before_id" in places:
        first = max(0, places["before_id"] - int(limit))
        return found[first : places["before_id"]], first > 0
    first = places.get("after_id", -1) + 1
    return found[first : first + int(limit)], first + int(limit) < len(found)


def verification(model: str, *, whole: bool) -> dict[str, Any] | None:
    """What `pippin verify` found of the model last; None for one that was not verified. `whole`: with the findings,
    which may name folders."""
    report = last_report(model)
    if report is None:
        return None
    found: dict[str, Any] = {
        "faults": report.count("fault"),
        "warnings": report.count("warning"),
        "at": report.at,
    }
    if whole:
        found["findings"] = [each for section in report.sections for each in section.findings]
    return {"verdict": report.verdict, **found}


def describe(info: ModelInfo, state: ModelState | None, fits: int = 0) -> dict[str, Any]:
    """A model in OpenAI's and Anthropic's form, with the fields of the replaced servers. There are no paths, as they
    would reveal the operator's disk. `fits` is the longest sequence in tokens that fits into memory; 0 if unknown."""
    length = min(filter(None, (info.context_window, fits)), default=None)
    loading = state is not None and state.state == "loading"
    here = info.path is not None or info.kind == "scripted"  # which needs no file
    return {
        "id": info.id,
        "object": "model",
        "type": "model",
        "display_name": info.id,
        "created": info.created,
        "created_at": datetime.fromtimestamp(info.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "owned_by": OWNER,
        "context_window": info.context_window,
        "context_length": length,
        "max_model_len": length,
        "meta": {"context_length": length},
        "loaded": state is not None and state.state == "loaded",
        "state": state.state if state is not None else "unloaded" if here else "not_downloaded",
        "stage": state.stage if loading and state is not None else None,
        "progress": state.progress if loading and state is not None else None,
        "error": state.error.message if state is not None and state.error is not None else None,
        "kind": info.kind,
        "capabilities": msgspec.structs.asdict(info.capabilities),
        "metadata": {
            "architecture": info.architecture,
            "quantization": info.quantization,
            "dtype": info.dtype,
            "size_bytes": info.size_bytes,
            "tool_parser": info.tool_format,
            "reasoning_parser": info.reasoning_format,
            "rewrites": info.rewrites,
            "dimensions": info.dimensions,
        },
    }
