"""`/v1/letters`."""

from typing import Annotated, Final

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from pippin.api.dialects.shared.engine_fields import Name
from pippin.api.dialects.shared.fields import Contract, about
from pippin.api.routing import Api, both, json_reply
from pippin.core.events import LettersCounted
from pippin.core.tasks import CountLetters


class LettersRequest(Struct, kw_only=True):
    text: Annotated[str, about("Where letters are counted.")]
    model: Annotated[Name, about("Name of the model.")] = "default"


class LettersReply(Struct, kw_only=True):
    model: str
    count: int


CONTRACT: Final = Contract(
    LettersRequest, {"user": "Bookkeeping of the client's."}, {"alphabet": "the model has its own letters."}
)
CONTRACTS: Final = {"POST /v1/letters": CONTRACT}


def routes(api: Api) -> list[BaseRoute]:
    async def count(request: Request) -> Response:
        """How often a model's letters stand in a text"""
        fields = await api.handler.fields_of(request, "letters", CONTRACT.decode)
        task = CountLetters(fields.text)
        found, _ = await api.handler.task(
            request, task, LettersCounted, model=fields.model, operation="letters"
        )
        model = (await api.service.names.find(fields.model)).id
        return json_reply(LettersReply(model=model, count=found.count))

    return [*both("/letters", count, "POST", body=LettersRequest, answer=LettersReply)]
