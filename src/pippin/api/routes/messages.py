"""`/v1/messages/count_tokens`; `/v1/messages` itself needs only its dialect."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from pippin.api.dialects.messages.dialect import MessagesBody, MessagesDialect
from pippin.api.dialects.messages.encode import TokenCount
from pippin.api.routing import Api, both, json_reply


def routes(api: Api) -> list[BaseRoute]:
    counting = MessagesDialect(counting=True)

    async def count_tokens(request: Request) -> Response:
        return json_reply(TokenCount(input_tokens=await api.handler.count(request, counting)))

    return [*both("/messages/count_tokens", count_tokens, "POST", body=MessagesBody, answer=TokenCount)]
