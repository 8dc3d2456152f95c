"""The WebSocket route, and a refusal for all other paths."""

from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket

from pippin.api.routing import VERSION, Api
from pippin.api.sockets.responses import ResponsesSocket
from pippin.core.errors import ErrorReport

NO_SOCKET = ErrorReport(
    kind="method_not_allowed",
    message="This address speaks no WebSocket; /v1/responses does. To talk with a model, use /v1/audio/transcriptions"
    " and /v1/audio/speech.",
)


def routes(api: Api) -> list[BaseRoute]:
    async def responses(socket: WebSocket) -> None:
        await ResponsesSocket(api, socket).serve()

    async def none(socket: WebSocket) -> None:
        await socket.send_denial_response(api.access.errors.reply(NO_SOCKET, socket.scope))

    return [
        *(WebSocketRoute(f"{prefix}/responses", responses) for prefix in (VERSION, "")),
        WebSocketRoute("/{path:path}", none),
    ]
