"""`/v1/embeddings`."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from pippin.api.kinds import embeddings
from pippin.api.routing import Api, Endpoint, both
from pippin.core.events import Embedded


def embedding(api: Api) -> Endpoint:
    """The endpoint that answers OpenAI's embedding requests."""

    async def embed(request: Request) -> Response:
        """Vectors of texts, pictures and conversations"""
        fields, unknown = await api.handler.json_of(request, embeddings.CONTRACT.decode)
        api.handler.note_unknown("embeddings", unknown)
        task = await api.handler.media.resolve_embed(embeddings.task_of(fields))
        [*_, found] = await api.handler.task(
            request, task, model=fields.model, operation="embeddings", admitted=True
        )
        assert isinstance(found, Embedded)
        name = (await api.service.find(fields.model, task.model_kind)).id
        drawn = await api.handler.large.do(len(found.vectors), embeddings.draw, fields, name, found)
        return Response(drawn, media_type="application/json")

    return embed


def routes(api: Api) -> list[BaseRoute]:
    asked, answered = embeddings.EmbeddingRequest, embeddings.EmbeddingReply
    return [*both("/embeddings", embedding(api), "POST", body=asked, answer=answered)]
