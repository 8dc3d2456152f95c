"""`/v1/rerank` (and `/v2/rerank`, Cohere's newer path) and `/v1/score`."""

import time

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from pippin.api.access.exchange import exchange_of
from pippin.api.kinds import reranking
from pippin.api.routing import Api, DocumentedRoute, both, json_reply
from pippin.core.events import Ranked
from pippin.core.tasks import Rerank


def routes(api: Api) -> list[BaseRoute]:
    async def run(request: Request, task: Rerank, model: str, operation: str) -> tuple[Ranked, str]:
        """The scores, and the name of the model that computed them."""
        [*_, found] = await api.handler.task(request, task, model=model, operation=operation, admitted=True)
        assert isinstance(found, Ranked)
        return found, (await api.service.find(model, task.model_kind)).id

    async def rerank(request: Request) -> Response:
        """Documents in the order of how well they fit a query"""
        fields, unknown = await api.handler.json_of(request, reranking.RERANK.decode)
        api.handler.note_unknown("rerank", unknown)
        task = await api.handler.media.resolve_rerank(reranking.rerank_task_of(fields))
        found, name = await run(request, task, fields.model, "rerank")
        stem = exchange_of(request.scope).id

        def draw() -> Response:
            usual = api.options.return_documents
            return json_reply(reranking.draw_ranking(fields, found, id=stem, model=name, usual=usual))

        return await api.handler.large.do(reranking.size_of(task), draw)

    async def score(request: Request) -> Response:
        """How well pairs of texts fit"""
        fields, unknown = await api.handler.json_of(request, reranking.SCORE.decode)
        api.handler.note_unknown("score", unknown)
        found, name = await run(request, reranking.score_task_of(fields), fields.model, "score")
        stem = exchange_of(request.scope).id
        return json_reply(reranking.draw_scores(found, id=stem, model=name, created=int(time.time())))

    body, answer = reranking.RerankRequest, reranking.RerankReply
    return [
        *both("/rerank", rerank, "POST", body=body, answer=answer),
        *both("/score", score, "POST", body=reranking.ScoreRequest, answer=reranking.ScoreReply),
        DocumentedRoute("/v2/rerank", rerank, ["POST"], body, answer),
    ]
