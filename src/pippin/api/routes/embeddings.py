"""`/v1/embeddings`, `/v1/rerank`, and `/v2/rerank`, Cohere's newer path."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from pippin.api.access.exchange import exchange_of
from pippin.api.kinds import embeddings, reranking
from pippin.api.routing import Api, DocumentedRoute, Endpoint, both, json_reply
from pippin.core.events import Embedded, Ranked


def embedding(api: Api) -> Endpoint:
    """The endpoint that answers OpenAI's embedding requests."""

    async def embed(request: Request) -> Response:
        """Vectors of texts, pictures and conversations"""
        fields = await api.handler.fields_of(request, "embeddings", embeddings.CONTRACT.decode)
        task = await api.handler.media.resolve_embed(embeddings.task_of(fields))
        found = await api.handler.result(request, task, Embedded, model=fields.model, operation="embeddings")
        name = (await api.service.find(fields.model, task.model_kind)).id
        drawn = await api.handler.large.do(len(found.vectors), embeddings.draw, fields, name, found)
        return Response(drawn, media_type="application/json")

    return embed


def ranking(api: Api) -> Endpoint:
    """The endpoint that orders documents."""

    async def rerank(request: Request) -> Response:
        """Documents in the order of how well they fit a query"""
        fields = await api.handler.fields_of(request, "rerank", reranking.RERANK.decode)
        task = await api.handler.media.resolve_rerank(reranking.rerank_task_of(fields))
        found = await api.handler.result(request, task, Ranked, model=fields.model, operation="rerank")
        name = (await api.service.find(fields.model, task.model_kind)).id
        stem = exchange_of(request.scope).id

        def draw() -> Response:
            usual = api.options.return_documents
            return json_reply(reranking.draw_ranking(fields, found, id=stem, model=name, usual=usual))

        return await api.handler.large.do(reranking.size_of(task), draw)

    return rerank


def routes(api: Api) -> list[BaseRoute]:
    asked, answered = embeddings.EmbeddingRequest, embeddings.EmbeddingReply
    body, answer, rerank = reranking.RerankRequest, reranking.RerankReply, ranking(api)
    return [
        *both("/embeddings", embedding(api), "POST", body=asked, answer=answered),
        *both("/rerank", rerank, "POST", body=body, answer=answer),
        DocumentedRoute("/v2/rerank", rerank, "POST", body=body, answer=answer),
    ]
