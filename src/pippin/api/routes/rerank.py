"""`/v1/rerank`, and `/v2/rerank`, Cohere's newer path."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from pippin.api.access.exchange import exchange_of
from pippin.api.kinds import reranking
from pippin.api.routing import Api, DocumentedRoute, both, json_reply
from pippin.core.events import Ranked


def routes(api: Api) -> list[BaseRoute]:
    async def rerank(request: Request) -> Response:
        """Documents in the order of how well they fit a query"""
        fields, unknown = await api.handler.json_of(request, reranking.RERANK.decode)
        api.handler.note_unknown("rerank", unknown)
        task = await api.handler.media.resolve_rerank(reranking.rerank_task_of(fields))
        [*_, found] = await api.handler.task(
            request, task, model=fields.model, operation="rerank", admitted=True
        )
        assert isinstance(found, Ranked)
        name = (await api.service.find(fields.model, task.model_kind)).id
        stem = exchange_of(request.scope).id

        def draw() -> Response:
            usual = api.options.return_documents
            return json_reply(reranking.draw_ranking(fields, found, id=stem, model=name, usual=usual))

        return await api.handler.large.do(reranking.size_of(task), draw)

    body, answer = reranking.RerankRequest, reranking.RerankReply
    return [
        *both("/rerank", rerank, "POST", body=body, answer=answer),
        DocumentedRoute("/v2/rerank", rerank, ["POST"], body, answer),
    ]
