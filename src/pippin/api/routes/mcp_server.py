"""`/mcp`: Pippin as an MCP server. Its tools are in `api/mcp_tools`."""

import asyncio
import contextlib
from typing import Annotated, Any, Final, Literal
from uuid import uuid4

from msgspec import Meta, Struct, field
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pippin.api.access.exchange import exchange_of, routed
from pippin.api.dialects.shared.fields import check_depth, convert, decode_json
from pippin.api.http.body import MIB, read_json_body
from pippin.api.mcp_tools.toolbox import INSTRUCTIONS, SESSION, PippinToolbox, key_of
from pippin.api.routing import VERSION, Api, json_reply
from pippin.core.errors import ServerError

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
"""JSON-RPC's error codes."""


def routes(api: Api) -> list[BaseRoute]:
    """The routes of the MCP server. They are not in the OpenAPI document: MCP has its own schemas, which clients
    request with `tools/list`."""
    answer = routed("/mcp", McpDoor(api).answer)
    return [Route(prefix + "/mcp", answer, methods=["POST"]) for prefix in ("", VERSION)]


class Rpc(Struct, kw_only=True):
    """The fields of a JSON-RPC message that are checked before the library reads it."""

    jsonrpc: Literal["2.0"]
    method: Annotated[str, Meta(max_length=256)] | None = None
    id: int | Annotated[str, Meta(max_length=256)] | None = None
    params: Any = None
    result: Any = None  # in a client's answer
    error: Any = None


class Cancelled(Struct, kw_only=True):
    """The parameters of `notifications/cancelled`."""

    id: int | str | None = field(default=None, name="requestId")


class McpDoor:
    """`POST /mcp`: bounds each message, handles cancellation, and passes everything else to the library."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._toolbox = PippinToolbox(api)
        self._endpoint: ASGIApp | None = None

    async def answer(self, request: Request) -> Response:
        """Answer one message of the Model Context Protocol"""
        options = self._api.options
        if not options.mcp_endpoint:
            raise ServerError(
                "not_found", "This server is no MCP server; its operator set mcp_endpoint to false."
            )
        body = await read_json_body(request, options.max_body_mb, options.body_timeout)
        try:
            given = await self._api.handler.large.do(len(body), decode_json, body, dict[str, Any])
        except ServerError as error:
            return rpc_error(PARSE_ERROR, error)
        try:
            check_depth(given, "message")
            message = convert(given, Rpc, "")
            if message.method is None and not given.keys() & {"result", "error"}:
                raise ServerError("invalid_request", "`method` is required.", "method")
        except ServerError as error:
            return rpc_error(INVALID_REQUEST, error)
        if message.method == "notifications/cancelled":
            self._cancel(request, message.params)
            return Response(status_code=202)
        endpoint = await self._opened()
        return Handed(endpoint, body, opens=message.method == "initialize")

    def _cancel(self, request: Request, params: Any) -> None:
        with contextlib.suppress(ServerError):  # a notification gets no answer, not even an error
            asked = convert(params, Cancelled, "params").id
            if asked is not None:
                self._toolbox.running.cancel(key_of(request, asked))

    async def _opened(self) -> ASGIApp:
        if self._endpoint is None:
            largest = int(self._api.options.max_body_mb * MIB)
            self._endpoint = await asyncio.to_thread(_open, self._toolbox, largest)  # a second to import
        return self._endpoint


def _open(toolbox: PippinToolbox, largest: int) -> ASGIApp:
    try:
        from pippin.mcp.endpoint import McpEndpoint
    except ModuleNotFoundError:
        message = "The library that speaks MCP is missing; the operator installs pippin[mcp]."
        raise ServerError("not_found", message) from None
    return McpEndpoint(toolbox, INSTRUCTIONS, largest)


class Handed(Response):
    """Lets an ASGI application answer a request whose body was already read."""

    def __init__(self, app: ASGIApp, body: bytes, *, opens: bool) -> None:
        """If `opens`, the request opens a session, and the reply gets a session id."""
        super().__init__()
        self._app = app
        self._body: bytes | None = body
        self._opens = opens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        ended = False

        async def receive_again() -> Message:
            body, self._body = self._body, None
            if body is not None:
                return {"type": "http.request", "body": body, "more_body": False}
            message = await receive()
            if message["type"] == "http.disconnect" and not ended:
                exchange_of(scope).gone = True
            return message

        async def send_named(message: Message) -> None:
            nonlocal ended
            if message["type"] == "http.response.start" and self._opens:
                MutableHeaders(scope=message)[SESSION] = uuid4().hex
            ended = message["type"] == "http.response.body" and not message.get("more_body")
            await send(message)

        # The parser keeps the whitespace after a header's value, which according to HTTP is not part of it. The content
        # type was checked before the body was read; the library only accepts one name for JSON.
        headers = [(name, value.strip()) for name, value in scope["headers"] if name != b"content-type"]
        headers.append((b"content-type", b"application/json"))
        await self._app({**scope, "headers": headers}, receive_again, send_named)


def rpc_error(code: int, error: ServerError) -> Response:
    """An error in JSON-RPC's form. The message could not be read, so its id is unknown."""
    told = {"code": code, "message": error.report.message}
    return json_reply({"jsonrpc": "2.0", "id": None, "error": told}, error.report.status)
