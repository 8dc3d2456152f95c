"""Ollama's `/api/*`: models, embeddings, pulling, and loading by an empty `/api/chat` or `/api/generate`.

Paths, fields and answers are those of Ollama's API reference, https://docs.ollama.com/api.
"""

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from pippin import __version__
from pippin.api.access.exchange import Endpoint, exchange_of
from pippin.api.dialects.ollama.dialect import (
    LATEST,
    LINES,
    AnswerLine,
    AnswerMessage,
    OllamaError,
    OllamaFields,
    OllamaOptions,
    keep_alive_of,
    model_of,
    timestamp,
)
from pippin.api.dialects.shared.engine_fields import Name
from pippin.api.dialects.shared.fields import Contract, Unused, about, decode_json
from pippin.api.http.body import EventStream
from pippin.api.kinds.embeddings import inputs_of, vectors_of
from pippin.api.routing import Api, both, json_reply
from pippin.config.errors import ConfigError
from pippin.core.errors import ServerError
from pippin.core.events import Embedded
from pippin.core.models import ModelInfo, ModelState
from pippin.core.requests import Sampling
from pippin.core.tasks import Embed
from pippin.service.service import merge_sampling

API_VERSION: Final = "0.40.12"
"""The version of Ollama whose API is implemented; clients query it to learn what they may send."""

FOR_EVER: Final = datetime(2318, 1, 1, tzinfo=UTC)
"""The expiry time of models that never expire."""

NAMES: Final = {"max_tokens": "num_predict", "repetition_penalty": "repeat_penalty"}
"""What Ollama calls parameters that have other names here."""

PULL_PAUSE: Final = 0.2  # seconds between two lines of a download


class NamedModel(Struct, kw_only=True):
    """A body that names a model; `name` is the older name of the field."""

    model: Name | None = None
    name: Name | None = None
    verbose: Unused = None
    stream: bool | None = None
    insecure: Unused = None
    username: Unused = None
    password: Unused = None


class CopyBody(Struct, kw_only=True):
    source: Name
    destination: Name


class EmbeddingBody(Struct, kw_only=True):
    """What both addresses of embeddings take."""

    model: Annotated[Name, about("Name of the model.")]
    options: Annotated[OllamaOptions | None, about("Accepted: texts are not sampled.")] = None
    keep_alive: Annotated[
        str | float | None, about("Accepted: how long the model stays loaded is the operator's.")
    ] = None


class EmbedBody(EmbeddingBody, kw_only=True):
    input: Annotated[str | tuple[str, ...], about("Text or texts.")] = ()
    truncate: Annotated[bool | None, about("False refuses texts that are too long.")] = None
    dimensions: Annotated[int, about("Keep the first so many values.", ge=1, le=2**20)] | None = None


class OldEmbedBody(EmbeddingBody, kw_only=True):
    prompt: Annotated[str, about("The text.")] = ""


def routes(api: Api) -> list[BaseRoute]:
    models, asking = OllamaModels(api), OllamaAnswers(api)
    return [
        *both("/api/version", version),
        *both("/api/tags", models.tags),
        *both("/api/ps", models.running),
        *both("/api/show", models.show, "POST", body=NamedModel),
        *both("/api/pull", models.pull, "POST", body=NamedModel),
        *both("/api/delete", models.delete, "DELETE", body=NamedModel),
        *both("/api/copy", models.copy, "POST", body=CopyBody),
        *both("/api/chat", asking.generation("/api/chat", "messages"), "POST"),
        *both("/api/generate", asking.generation("/api/generate", "prompt"), "POST"),
        *both("/api/embed", asking.embed, "POST", body=EmbedBody),
        *both("/api/embeddings", asking.embed_one, "POST", body=OldEmbedBody),
    ]


async def version(request: Request) -> Response:
    """The version of Ollama's API that is spoken, and Pippin's own."""
    return json_reply({"version": API_VERSION, "pippin": __version__})


def tagged(id: str) -> str:
    """A model's name as Ollama's clients expect it: with a tag."""
    return id if ":" in id.rpartition("/")[2] else id + LATEST


def details_of(info: ModelInfo) -> dict[str, Any]:
    family = info.architecture or info.kind
    return {
        "parent_model": "",
        "format": "safetensors",
        "family": family,
        "families": [family],
        "parameter_size": "",
        "quantization_level": info.quantization or info.dtype or "unknown",
    }


def named_facts(info: ModelInfo, size: int) -> dict[str, Any]:
    """What the list of models and that of running ones say of each. The digest identifies a model by its id, size and
    date, without reading its files."""
    name, digest = tagged(info.id), _digest(repr((info.id, info.size_bytes, info.created)))
    return {"name": name, "model": name, "size": size, "digest": digest, "details": details_of(info)}


def capabilities_of(info: ModelInfo) -> list[str]:
    can = info.capabilities
    if info.kind == "embeddings":
        return ["embedding"]
    words = {"completion": can.chat or info.kind == "language", "insert": can.infill, "tools": can.tools}
    words |= {"vision": can.images, "thinking": can.reasoning, "audio": can.audio}
    return [word for word, is_so in words.items() if is_so]


class OllamaModels(Struct, frozen=True):
    """The endpoints that list, show, download, copy and delete models."""

    api: Api

    async def tags(self, request: Request) -> Response:
        """The models that are here."""
        models = [
            named_facts(info, info.size_bytes) | {"modified_at": timestamp(info.created)}
            for info in await self.api.models(request)
        ]
        return json_reply({"models": models})

    async def running(self, request: Request) -> Response:
        """The models that are in memory."""
        pool = self.api.service.pool
        loaded = [state for state in pool.states() if state.state == "loaded"]
        known = [(state, info) for state in loaded if (info := pool.info(state.id)) is not None]
        opens = exchange_of(request.scope).opens
        return json_reply({"models": [self._running(state, info) for state, info in known if opens(info)]})

    async def show(self, request: Request) -> Response:
        """What is known of one model."""
        name, _ = await self._named(request)
        info = await self.api.model(request, name)
        family = info.architecture or info.kind
        facts: dict[str, Any] = {
            "general.architecture": family,
            "general.basename": info.id,
            "general.size_bytes": info.size_bytes,
            f"{family}.context_length": info.context_window,
            f"{family}.embedding_length": info.dimensions,
        }
        options = self.api.service.catalog.options_for(info)
        set_here = {"max_tokens": options.max_tokens}
        set_here |= msgspec.structs.asdict(merge_sampling(Sampling(), options, info))
        parameters = [
            f"{NAMES.get(name, name)} {value}"
            for name, value in set_here.items()
            if isinstance(value, int | float)
        ]
        return json_reply(
            {
                "modelfile": f"FROM {info.id}",
                "parameters": "\n".join(parameters),
                "template": "",
                "details": details_of(info),
                "model_info": {name: fact for name, fact in facts.items() if fact is not None},
                "capabilities": capabilities_of(info),
                "modified_at": timestamp(info.created),
            }
        )

    async def pull(self, request: Request) -> Response:
        """Downloads a model, where downloads are allowed; a stream tells how far it is."""
        name, streams = await self._named(request)
        service = self.api.service
        if not streams:
            await service.catalog.ensure(name, lambda done, total, what: None)
            return json_reply({"status": "success"})
        return EventStream(pulled(service.catalog.ensure, name), LINES)

    async def delete(self, request: Request) -> Response:
        """Deletes a model's files."""
        name, _ = await self._named(request)
        info = await self.api.model(request, name)
        await self.api.service.pool.unload(info.id)
        await asyncio.to_thread(self.api.service.catalog.remove, info.id)
        return Response(status_code=200)

    async def copy(self, request: Request) -> Response:
        """Gives a model a second name, until the server ends."""
        body = decode_json(await self.api.handler.body_of(request, counted=False), CopyBody)
        info = await self.api.model(request, model_of(body.source))
        aliases = {**self.api.options.aliases, model_of(body.destination): info.id}
        try:
            await self.api.settings.change({"aliases": aliases})
        except ConfigError as error:
            raise ServerError("invalid_request", str(error), "destination") from None
        return Response(status_code=200)

    async def _named(self, request: Request) -> tuple[str, bool]:
        """The model that a body names, and whether the answer is streamed, which is the default."""
        body = decode_json(await self.api.handler.body_of(request, counted=False), NamedModel)
        name = body.model or body.name
        if not name:
            raise ServerError("invalid_request", "`model` is required: name the model.", "model")
        return model_of(name), body.stream is not False

    def _running(self, state: ModelState, info: ModelInfo) -> dict[str, Any]:
        idle = self.api.options.model_defaults.idle_timeout
        expires = FOR_EVER.isoformat()
        if idle and not state.pinned:
            expires = timestamp((state.last_used or time.time()) + idle)
        return named_facts(info, state.footprint) | {
            "expires_at": expires,
            "size_vram": state.footprint,
            "context_length": info.context_window or 0,
        }


async def pulled(ensure: Any, name: str) -> AsyncIterator[bytes]:
    """The lines of a download: its progress, and at the end `success` or an error."""

    def line(**fields: Any) -> bytes:
        return msgspec.json.encode(fields) + b"\n"

    reached: deque[tuple[int, int, str]] = deque(maxlen=1)  # and not told yet
    yield line(status="pulling manifest")
    download = asyncio.ensure_future(ensure(name, lambda *step: reached.append(step)))
    try:
        while not download.done():
            await asyncio.wait([download], timeout=PULL_PAUSE)
            if reached:
                done, total, what = reached.pop()
                yield line(
                    status=f"pulling {what}", digest=f"sha256:{_digest(what)}", total=total, completed=done
                )
        await download
    except ServerError as error:
        yield msgspec.json.encode(OllamaError(error=error.report.message)) + b"\n"
    else:
        yield line(status="success")
    finally:
        download.cancel()


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


class OllamaAnswers(Struct, frozen=True):
    """The endpoints answered by models: generation, or loading if there is no prompt, and embeddings."""

    api: Api

    def generation(self, path: str, said: str) -> Endpoint:
        """The endpoint of a dialect. A body whose field `said` is empty has no prompt and loads the model."""
        handler, dialect = self.api.handler, self.api.dialects[path]

        async def generate(request: Request) -> Response:
            body = await handler.body_of(request)
            given = await handler.large.do(len(body), decode_json, body, dict[str, msgspec.Raw])
            prompt = (bytes(given[name]) for name in (said, "images", "suffix") if name in given)
            if any(value not in (b"null", b'""', b"[]") for value in prompt):
                return await handler.generate(request, dialect, body=body)
            fields, ignored = await handler.large.do(len(body), dialect.contract.decode, body)
            handler.note_unknown(dialect.name, ignored)
            return await self._load(request, fields, said)

        return generate

    async def embed(self, request: Request) -> Response:
        """Vectors of texts"""
        fields = await self.api.handler.fields_of(request, "ollama_embed", EMBED.decode)
        started = time.monotonic()
        if not fields.input:
            return json_reply({"model": fields.model, "embeddings": []})
        task = Embed(
            inputs=inputs_of(fields.input),
            dimensions=fields.dimensions,
            overflow="error" if fields.truncate is False else "truncate",
        )
        found = await self._embedded(request, task, fields.model)
        taken = round((time.monotonic() - started) * 1e9)
        return json_reply(
            {
                "model": fields.model,
                "embeddings": vectors_of(found),
                "total_duration": taken,
                "load_duration": 0,
                "prompt_eval_count": found.used_tokens,
            }
        )

    async def embed_one(self, request: Request) -> Response:
        """The vector of one text, as clients asked for it before `/api/embed`"""
        fields = await self.api.handler.fields_of(request, "ollama_embeddings", EMBED_ONE.decode)
        if not fields.prompt:
            return json_reply({"embedding": []})
        task = Embed(inputs=(fields.prompt,), overflow="truncate")
        return json_reply({"embedding": vectors_of(await self._embedded(request, task, fields.model))[0]})

    async def _embedded(self, request: Request, task: Embed, model: str) -> Embedded:
        found, _ = await self.api.handler.task(
            request, task, Embedded, model=model_of(model), operation="embeddings"
        )
        return found

    async def _load(self, request: Request, fields: OllamaFields, said: str) -> Response:
        """Load the model, or unload it if `keep_alive` is 0."""
        info = await self.api.model(request, model_of(fields.model))
        reason = "load"
        if keep_alive_of(fields.keep_alive) == 0:
            if not exchange_of(request.scope).manages:
                raise ServerError("permission", "Only an administrator may unload a model.", "keep_alive")
            reason = "unload"
            await self.api.service.pool.unload(info.id)
        else:
            await self.api.service.pool.load(info.id)
        line = AnswerLine(
            model=fields.model, created_at=timestamp(time.time()), done=True, done_reason=reason
        )
        if said == "prompt":
            line.response = ""
        else:
            line.message = AnswerMessage()
        streams = fields.stream is not False
        return Response(
            msgspec.json.encode(line) + (b"\n" if streams else b""),
            media_type=LINES if streams else "application/json",
        )


EMBED: Final = Contract(EmbedBody)
EMBED_ONE: Final = Contract(OldEmbedBody)
