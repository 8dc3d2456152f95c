"""`/v1/realtime/client_secrets`: keys for browsers, each bound to the session that it may open."""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from pippin.api.access.client_secrets import MOST_SECONDS
from pippin.api.access.exchange import exchange_of
from pippin.api.access.guards import REALTIME, check_endpoint
from pippin.api.dialects.shared.fields import Contract
from pippin.api.routing import Api, both, json_reply
from pippin.api.sockets.realtime.calls import Calls
from pippin.api.sockets.realtime.opening import check_served, session_of
from pippin.api.sockets.realtime.response import new_id
from pippin.api.sockets.realtime.session import Session, SessionFields, refuse_former, shown
from pippin.core.errors import ServerError


class ExpiresAfter(Struct, kw_only=True):
    anchor: Literal["created_at"] = "created_at"
    seconds: Annotated[int, Meta(ge=10, le=MOST_SECONDS, description="From now.")] = 600


class ClientSecretBody(Struct, kw_only=True):
    expires_after: Annotated[
        ExpiresAfter | None,
        Meta(description="How long connections may be opened with it: 10 minutes if not set."),
    ] = None
    session: Annotated[
        SessionFields | None, Meta(description="What its sessions are set to; they may change it.")
    ] = None


class ClientSecretReply(Struct, kw_only=True):
    value: str
    expires_at: int
    session: Session


CONTRACT: Final[Contract[ClientSecretBody]] = Contract(ClientSecretBody)


def routes(api: Api) -> list[BaseRoute]:
    async def create(request: Request) -> Response:
        """A key for a browser, which opens Realtime connections for some minutes"""
        fields, unknown = await api.handler.json_of(request, CONTRACT.decode)
        refuse_former(unknown)
        api.handler.note_unknown("client_secret", unknown)
        exchange = exchange_of(request.scope)
        if exchange.key is not None:
            check_endpoint(exchange.key, REALTIME)
        given = fields.session or SessionFields()
        calls = Calls(api, request)
        settings, _ = await session_of(calls, given)
        await check_served(calls, settings, "session")
        value, expires_at = api.access.client_secrets.make(
            exchange.account,
            exchange.key,
            msgspec.json.encode(given),
            (fields.expires_after or ExpiresAfter()).seconds,
        )
        return json_reply(
            ClientSecretReply(
                value=value, expires_at=expires_at, session=shown(settings, new_id("sess"), expires_at)
            )
        )

    async def calls(request: Request) -> Response:
        """Refused: Realtime connections are WebSockets"""
        raise ServerError(
            "unsupported",
            "Realtime calls over WebRTC and SIP are not offered: open a WebSocket at /v1/realtime, in a browser with a "
            "secret of /v1/realtime/client_secrets.",
        )

    body: Any = ClientSecretBody
    return [
        *both("/realtime/client_secrets", create, "POST", body=body, answer=ClientSecretReply),
        *both("/realtime/calls", calls, "POST"),
    ]
