"""`/v1/embeddings`."""

import asyncio
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from pippin.api.context import Api, both
from pippin.api.kinds import embeddings
from pippin.core.events import Embedded

LARGE: Final = 256 << 10  # bytes; decoding or drawing more would hold up the event loop


def routes(api: Api) -> list[BaseRoute]:
    async def embed(request: Request) -> Response:
        """Vectors of texts"""
        body = await api.handler.json_of(request)
        if len(body) > LARGE:
            fields, unknown = await asyncio.to_thread(embeddings.CONTRACT.decode, body)
        else:
            fields, unknown = embeddings.CONTRACT.decode(body)
        api.handler.note_unknown("embeddings", unknown)
        task = embeddings.task_of(fields)
        [*_, found] = await api.handler.perform(
            request, task, model=fields.model, kind="embeddings", admitted=True
        )
        assert isinstance(found, Embedded)
        name = api.service.model(fields.model).id
        if len(found.vectors) > LARGE:
            drawn = await asyncio.to_thread(embeddings.draw, fields, name, found)
        else:
            drawn = embeddings.draw(fields, name, found)
        return Response(drawn, media_type="application/json")

    return [
        *both(
            "/embeddings", embed, "POST", body=embeddings.EmbeddingRequest, answer=embeddings.EmbeddingReply
        )
    ]
