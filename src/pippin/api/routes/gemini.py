"""Gemini's API beside `generateContent`, which needs only its dialect: streams, token counts, embeddings, models.

Paths, fields and answers are those of https://ai.google.dev/api. There the name of a model begins with `models/`.
"""

from typing import Annotated, Any, Final

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from pippin.api.access.exchange import Endpoint
from pippin.api.dialects.gemini.content import Content, ContentsReader
from pippin.api.dialects.gemini.dialect import PATH, CountBody, GeminiBody, GeminiDialect, model_of, spelled
from pippin.api.dialects.shared.body_types import camel
from pippin.api.dialects.shared.fields import (
    Contract,
    Unused,
    about,
    called,
    check_refused,
    invalid,
    refused,
    unsupported,
)
from pippin.api.kinds.embeddings import MOST_INPUTS, overflow_of, vectors_of
from pippin.api.routes.models import page_of
from pippin.api.routing import Api, both, json_reply
from pippin.core.conversation import Text
from pippin.core.errors import ServerError, renamed
from pippin.core.events import Embedded
from pippin.core.models import ModelInfo
from pippin.core.tasks import Conversation, Embed

PAGE: Final = "50"
PAGING: Final = called(limit="pageSize", after_id="pageToken")
PURPOSES: Final[dict[str, tuple[str, ...]]] = {
    "TASK_TYPE_UNSPECIFIED": (),
    "RETRIEVAL_QUERY": ("query", "search_query", "retrieval-query", "retrieval.query"),
    "RETRIEVAL_DOCUMENT": (
        "document",
        "passage",
        "search_document",
        "retrieval-document",
        "retrieval.passage",
    ),
    "SEMANTIC_SIMILARITY": ("sts", "text-matching", "pairclassification"),
    "CLASSIFICATION": ("classification",),
    "CLUSTERING": ("clustering", "separation"),
    "CODE_RETRIEVAL_QUERY": ("instructionretrieval", "code", "query", "search_query"),
    **dict.fromkeys(("QUESTION_ANSWERING", "FACT_VERIFICATION"), ("query", "search_query")),
}
"""What the publishers of models call the prompt for a task, in small letters."""
METHODS: Final = {"embeddings": ["embedContent", "batchEmbedContents"]}
"""What a model of a kind does; all others are asked to generate."""


class EmbedOne(Struct, kw_only=True, omit_defaults=True, rename="camel"):
    content: Annotated[Content | None, about("What becomes one vector.")] = None
    output_dimensionality: Annotated[
        Annotated[int, Meta(ge=0, le=2**20)] | None, about("Keep the first so many values.")
    ] = None
    auto_truncate: Annotated[
        bool | None, about("Cut what is too long, or refuse it; not set is the option's choice.")
    ] = None
    task_type: Annotated[
        str | None, about("What the vector is for: chooses among the model's own prompts.")
    ] = None
    title: Annotated[Any, refused("put it in front of the text in `content`.")] = None
    embed_content_config: Annotated[Any, refused("write its fields beside `content`.")] = None
    mime_type: Annotated[Any, refused("the parts of `content` have types of their own.")] = None
    document_ocr: Annotated[Any, refused("documents are not read here; send their text.")] = None
    audio_track_extraction: Annotated[Any, refused("sound can't be embedded here.")] = None
    model: Unused = None


class EmbedMany(Struct, kw_only=True, omit_defaults=True, rename="camel"):
    requests: Annotated[tuple[EmbedOne, ...], about("One for each vector.", max_length=MOST_INPUTS)] = ()


ONE: Final = Contract(EmbedOne)
MANY: Final = Contract(EmbedMany)


class TokenCount(Struct, kw_only=True, rename="camel"):
    total_tokens: int


def routes(api: Api) -> list[BaseRoute]:
    google = GeminiRoutes(api)
    return [
        *both(f"{PATH}:streamGenerateContent", google.stream, "POST", body=GeminiBody),
        *both(f"{PATH}:countTokens", google.count, "POST", body=CountBody, answer=TokenCount),
        *both(f"{PATH}:embedContent", google.embedding(ONE), "POST", body=EmbedOne),
        *both(f"{PATH}:batchEmbedContents", google.embedding(MANY), "POST", body=EmbedMany),
        *both("/v1beta/models", google.models),
        *both(PATH, google.model),
    ]


EVENTS: Final = GeminiDialect("events")
ARRAY: Final = GeminiDialect("array")
COUNTING: Final = GeminiDialect(counting=True)


class GeminiRoutes(Struct, frozen=True):
    api: Api

    async def stream(self, request: Request) -> Response:
        """Gemini's answer as a stream: server-sent events with `alt=sse`, else a JSON array"""
        match request.query_params.get("alt", "json"):
            case "sse":
                return await self.api.handler.generate(request, EVENTS)
            case "json":
                return await self.api.handler.generate(request, ARRAY)
            case _:
                raise unsupported("alt", "send `sse` or `json`.")

    async def count(self, request: Request) -> Response:
        return json_reply(TokenCount(total_tokens=await self.api.handler.count(request, COUNTING)))

    def embedding(self, contract: Contract[Any]) -> Endpoint:
        """The endpoint for one vector, or for many."""
        handler = self.api.handler

        async def embed(request: Request) -> Response:
            """Vectors of texts and pictures, in Gemini's form"""
            fields = await handler.fields_of(
                request, "gemini_embeddings", lambda body: contract.decode(spelled(body, contract.body))
            )
            check_refused(fields)
            many = isinstance(fields, EmbedMany)
            wanted = embed_task(fields.requests, "requests[{}].") if many else embed_task((fields,), "")
            task = await handler.media.resolve_embed(wanted)
            model = model_of(request.path_params["model"])
            found, _ = await handler.task(request, task, Embedded, model=model, operation="embeddings")
            vectors = await handler.large.do(len(found.vectors), vectors_of, found)
            shown = [{"values": vector} for vector in vectors]
            usage = {"promptTokenCount": found.used_tokens}
            held: dict[str, Any] = {"embeddings": shown} if many else {"embedding": shown[0]}
            return json_reply(held | {"usageMetadata": usage})

        return embed

    async def models(self, request: Request) -> Response:
        """The models that are here, in Gemini's form"""
        asked, found = request.query_params, await self.api.models(request)
        if asked.get("filter"):
            raise unsupported("filter", "the list is short; leave it out.")
        paging = {"limit": asked.get("pageSize") or PAGE}
        if token := asked.get("pageToken"):
            paging["after_id"] = token
        try:
            page, more = page_of(found, paging)
        except ServerError as error:
            raise ServerError.of(renamed(error.report, PAGING)) from None
        following = {"nextPageToken": page[-1].id} if more else {}
        return json_reply({"models": [described(info) for info in page]} | following)

    async def model(self, request: Request) -> Response:
        info = await self.api.model(request, model_of(request.path_params["model"]))
        return json_reply(described(info))


def embed_task(asked: tuple[EmbedOne, ...], prefix: str) -> Embed:
    """Raises `ServerError` naming the field that can't be honoured; `prefix` is the place of a request in its body."""
    if not asked:
        raise invalid("requests", "must not be empty.")
    first = asked[0]
    for place, each in enumerate(asked):
        for name in ("output_dimensionality", "auto_truncate", "task_type"):
            if getattr(each, name) != getattr(first, name):
                raise invalid(
                    f"{prefix.format(place)}{camel(name)}", "must be the same in all of `requests`."
                )
    purpose = (first.task_type or "TASK_TYPE_UNSPECIFIED").upper()
    if purpose not in PURPOSES:
        raise invalid(f"{prefix.format(0)}taskType", f"must be one of {', '.join(PURPOSES)}.")
    return Embed(
        purposes=PURPOSES[purpose],
        inputs=tuple(
            _input_of(each.content, f"{prefix.format(place)}content") for place, each in enumerate(asked)
        ),
        dimensions=first.output_dimensionality or None,
        overflow=overflow_of(first.auto_truncate),
    )


def _input_of(content: Content | None, at: str) -> str | Conversation:
    """A text, or a turn of the user with its media."""
    reader = ContentsReader()
    reader.read(Content(parts=None if content is None else content.parts), at)
    parts = [part for message in reader.messages for part in message.parts]
    if [message.role for message in reader.messages] != ["user"]:
        raise invalid(at, "must hold text or media in `parts`.")
    texts = [part.text for part in parts if isinstance(part, Text)]
    return (
        "".join(texts) if len(texts) == len(parts) else Conversation(messages=(*reader.messages,), field=at)
    )


def described(info: ModelInfo) -> dict[str, Any]:
    facts = {
        "name": f"models/{info.id}",
        "displayName": info.id,
        "description": f"{info.architecture or info.kind}, {info.quantization or info.dtype or 'as it is'}",
        "version": str(info.created),
        "supportedGenerationMethods": METHODS.get(info.kind, ["generateContent", "countTokens"]),
        "inputTokenLimit": info.context_window,
        "outputTokenLimit": info.context_window,
        "thinking": info.capabilities.reasoning,
        "temperature": info.sampling.temperature,
        "topP": info.sampling.top_p,
        "topK": info.sampling.top_k,
    }
    return {name: fact for name, fact in facts.items() if fact is not None}
