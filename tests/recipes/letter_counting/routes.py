"""`/v1/letters`."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from pippin.api.kinds import letters
from pippin.api.routing import Api, both, json_reply
from pippin.core.events import LettersCounted


def routes(api: Api) -> list[BaseRoute]:
    async def count(request: Request) -> Response:
        """How often a model's letters stand in a text"""
        fields = await api.handler.fields_of(request, "letters", letters.CONTRACT.decode)
        found = await api.handler.result(
            request, letters.task_of(fields), LettersCounted, model=fields.model, operation="letters"
        )
        return json_reply(letters.reply_of((await api.service.find(fields.model)).id, found))

    return [*both("/letters", count, "POST", body=letters.LettersRequest, answer=letters.LettersReply)]
