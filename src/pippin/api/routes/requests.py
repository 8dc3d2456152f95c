"""Cancels running requests by id."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from pippin.api.access.exchange import exchange_of
from pippin.api.access.guards import NO_KEY
from pippin.api.dialects.registry import run_id_of
from pippin.api.routing import Api, both, json_reply
from pippin.core.errors import ServerError


def routes(api: Api) -> list[BaseRoute]:
    async def cancel(request: Request) -> Response:
        """The id is the one of the answer (`chatcmpl-...`) or that of the request (`x-request-id`).

        Only an administrator can cancel another caller's request.
        """
        name = request.path_params["id"]
        exchange = exchange_of(request.scope)
        if exchange.key is None and not exchange.manages:  # callers without a key can't be told apart
            raise ServerError("permission", NO_KEY)
        if not await api.handler.answers.cancel(run_id_of(api.dialects, name), exchange):
            raise ServerError("not_found", "No request with this id is running.", "id")
        return json_reply(
            {"id": name, "request_id": name, "object": "request", "status": "cancelled", "success": True}
        )

    return [*both("/requests/{id}/cancel", cancel, "POST"), *both("/requests/{id}", cancel, "DELETE")]
