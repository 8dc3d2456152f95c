"""`/v1/decisions`."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from pippin.api.kinds import decisions
from pippin.api.routing import Api, both, json_reply
from pippin.core.events import Decided
from pippin.core.tasks import Decide


def routes(api: Api) -> list[BaseRoute]:
    async def decide(request: Request) -> Response:
        """Answers of a decision model to named questions about a state"""
        fields, unknown = await api.handler.json_of(request, decisions.CONTRACT.decode)
        api.handler.note_unknown("decisions", unknown)
        [*_, found] = await api.handler.task(
            request, decisions.task_of(fields), model=fields.model, operation="decisions", admitted=True
        )
        assert isinstance(found, Decided)
        return json_reply(
            decisions.reply_of((await api.service.find(fields.model, Decide.model_kind)).id, found)
        )

    return [
        *both("/decisions", decide, "POST", body=decisions.DecisionRequest, answer=decisions.DecisionReply)
    ]
