"""`/v1/rerank`, Cohere's and Jina's, and `/v2/rerank`, Cohere's newer path."""

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from pippin.api.access.exchange import exchange_of
from pippin.api.dialects.shared.engine_fields import Name
from pippin.api.dialects.shared.fields import Contract, about, without_effect
from pippin.api.http.body import bytes_in
from pippin.api.kinds.embeddings import MediaObject, TextUsage, object_parts, overflow_of
from pippin.api.routing import Api, DocumentedRoute, both, json_reply
from pippin.core.conversation import Image, Text, Video
from pippin.core.events import Ranked
from pippin.core.tasks import Rerank, RerankDocument


class RerankRequest(Struct, kw_only=True, omit_defaults=True):
    query: Annotated[
        Annotated[str, Meta(min_length=1)] | MediaObject,
        about("What the documents are compared with: a text, or an object with a `text` or an `image`."),
    ]
    documents: Annotated[
        Annotated[tuple[str | MediaObject, ...], Meta(min_length=1, max_length=4096)],
        about("Texts, or objects with a `text`, an `image` or a `video`."),
    ]
    model: Annotated[Name, about("Name of the model.")] = "default"
    top_n: Annotated[int, about("Answer with so many of the best.", ge=1)] | None = None
    return_documents: Annotated[
        bool | None, about("Give each document back; true if not set, as Jina has it.")
    ] = None
    instruction: Annotated[str | None, about("What makes a document fit, for models that are told.")] = None
    truncate: Annotated[
        bool | None,
        about("Cut documents that are too long, or refuse them; not set is the option's choice."),
    ] = None


RERANK: Final = Contract(RerankRequest, *without_effect(__name__, "reranking"))
CONTRACTS: Final = {"POST /v1/rerank": RERANK}


class RankedDocument(Struct, kw_only=True, omit_defaults=True):
    index: int
    relevance_score: float
    document: MediaObject | None = None


class RerankReply(Struct, kw_only=True):
    id: str
    object: Literal["list"] = "list"
    model: str
    results: list[RankedDocument]
    usage: TextUsage
    meta: dict[str, Any]


def rerank_task_of(fields: RerankRequest) -> Rerank:
    documents = tuple(
        RerankDocument(parts_of(document, f"documents[{place}]"))
        for place, document in enumerate(fields.documents)
    )
    asked = parts_of(fields.query, "query")
    return Rerank(
        query="".join(part.text for part in asked if isinstance(part, Text)),
        query_media=tuple(part for part in asked if not isinstance(part, Text)),
        documents=documents,
        instruction=fields.instruction or None,
        overflow=overflow_of(fields.truncate),
    )


def parts_of(document: str | MediaObject, path: str) -> tuple[Text | Image | Video, ...]:
    """A document's clip, picture and text. A document without media is a text, which may be empty."""
    if isinstance(document, str):
        return (Text(document),)
    if document == MediaObject(text=document.text) and document.text is not None:
        return (Text(document.text),)
    return object_parts(document, path)


def draw_ranking(fields: RerankRequest, found: Ranked, *, id: str, model: str, usual: bool) -> RerankReply:
    """The reply with documents by descending score; equal scores keep the order of the request. `usual`: whether
    documents are returned if the request does not say."""
    order = sorted(range(len(found.scores)), key=lambda index: -found.scores[index])
    shown = usual if fields.return_documents is None else fields.return_documents
    results = []
    for index in order[: fields.top_n]:
        given = fields.documents[index]
        body = MediaObject(text=given) if isinstance(given, str) else given
        results.append(
            RankedDocument(index=index, relevance_score=found.scores[index], document=body if shown else None)
        )
    return RerankReply(
        id=f"rerank-{id}",
        model=model,
        results=results,
        usage=TextUsage(prompt_tokens=found.used_tokens, total_tokens=found.used_tokens),
        meta={"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
    )


def routes(api: Api) -> list[BaseRoute]:
    async def rerank(request: Request) -> Response:
        """Documents in the order of how well they fit a query"""
        fields = await api.handler.fields_of(request, "rerank", RERANK.decode)
        task = await api.handler.media.resolve_rerank(rerank_task_of(fields))
        found, _ = await api.handler.task(request, task, Ranked, model=fields.model, operation="rerank")
        name = (await api.service.names.find(fields.model, task.model_kind)).id
        stem = exchange_of(request.scope).id

        def draw() -> Response:
            usual = api.options.return_documents
            return json_reply(draw_ranking(fields, found, id=stem, model=name, usual=usual))

        return await api.handler.large.do(bytes_in(task.documents), draw)

    return [
        *both("/rerank", rerank, "POST", body=RerankRequest, answer=RerankReply),
        DocumentedRoute("/v2/rerank", rerank, "POST", body=RerankRequest, answer=RerankReply),
    ]
