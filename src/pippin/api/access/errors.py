"""Encodes errors as replies, each in the format of the request's dialect."""

import logging
import math
import re
from collections.abc import Mapping
from typing import Final

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from pippin.api.access.exchange import exchange_of
from pippin.api.dialects.base import AnyDialect
from pippin.api.dialects.registry import dialect_of_path
from pippin.api.http.body import ACCEPTED, CODING
from pippin.core.errors import ErrorReport, ServerError

log = logging.getLogger(__name__)

ANTHROPIC: Final = "anthropic-version"
"""The header that Anthropic's clients always send, also to addresses that both vendors' clients use."""

_CLIENTS_WORDS = re.compile(
    r"(invalid (?:enum )?value) '.*'"
    r"|(The JSON schema can't be honoured|The (?:GBNF )?grammar can't be (?:compiled|read)"
    r"|The model's chat template can't render these messages).*",
    re.DOTALL,
)
"""Parts of messages that quote the client. They are kept out of the log: they may hold a prompt or a secret."""

GONE: Final = {
    "/generate": "mlx_vlm.server had it before its version 0.3: use /v1/chat/completions.",
    "/lmstudio-greeting": "LM Studio's own protocol is not spoken; use /v1, as an OpenAI client does, or /api/v0.",
    "/api/v1/models": "GET /api/v0/models or /v1/models lists the models.",
    "/api/v1/models/load": "use POST /v1/models/load.",
    "/api/v1/models/unload": "use POST /v1/models/unload.",
    "/api/create": "models are made elsewhere: `pippin import` reads GGUF files.",
    "/api/push": "models are not uploaded from here.",
    "/api/v1/chat": "use /v1/responses, which keeps conversations, or /api/v0/chat/completions.",
    "/v1beta/decisions": "use /v1/systemone, whose questions are alike, or /v1/decisions.",
    "/v1beta/cachedContents": "the prefix cache keeps every prompt; send all of `contents`.",
    "/v1/messages/batches": "send such requests to /v1/batches, each to /v1/chat/completions.",
}
"""What to use instead of addresses that other APIs have, or that the replaced servers had once."""

INTERNAL = ErrorReport(kind="internal", message="The server failed; its log has the reason.")


class Errors:
    """Encodes errors as replies, each in the format of the dialect that owns the address."""

    def __init__(self, dialects: Mapping[str, AnyDialect]) -> None:
        self._dialects = dialects

    def reply(self, report: ErrorReport, scope: Scope) -> Response:
        """The error in the format of the address's dialect; its message goes to the access log too."""
        exchange = exchange_of(scope)
        exchange.refusal = _CLIENTS_WORDS.sub(r"\1\2", report.message)
        anthropic = ANTHROPIC in Headers(scope=scope)
        dialect = dialect_of_path(self._dialects, exchange.path, anthropic=anthropic)
        return self.reply_in(dialect, report, exchange.id)

    def reply_in(self, dialect: AnyDialect, report: ErrorReport, request_id: str) -> Response:
        headers = {"request-id": request_id}
        if report.retry_after is not None:
            headers["retry-after"] = str(max(1, math.ceil(report.retry_after)))
        elif report.kind in ("rate_limited", "overloaded"):
            headers["retry-after"] = "1"
        if report.kind == "authentication":
            headers["www-authenticate"] = "Bearer"
        if report.param == CODING:
            headers["accept-encoding"] = ACCEPTED
        body = dialect.error(report, request_id)
        return Response(body, dialect.status(report), headers, media_type="application/json")

    async def server_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, ServerError)
        return self.reply(error.report, request.scope)

    async def http_error(self, request: Request, error: Exception) -> Response:
        """The reply to an error of Starlette's router: an unknown address, or a method that it does not answer."""
        assert isinstance(error, HTTPException)
        headers = dict(error.headers or {})
        match error.status_code:
            case 404:
                way_out = GONE.get(request.url.path, "/docs lists what there is.")
                report = ErrorReport(kind="not_found", message=f"There is nothing at this address; {way_out}")
            case 405:
                found: set[str] = set()
                for route in request.app.routes:
                    if route.matches(request.scope)[0] is not Match.NONE:
                        found |= getattr(route, "methods", None) or set()
                headers["Allow"] = answered = ", ".join(sorted(found))
                wrong = f"does not answer {request.method}"
                if request.headers.get("upgrade", "").lower() == "websocket":
                    wrong = "speaks no WebSocket"
                report = ErrorReport(
                    kind="method_not_allowed", message=f"This address {wrong}; it answers {answered}."
                )
            case _:
                report = ErrorReport(kind="invalid_request", message=error.detail)
        reply = self.reply(report, request.scope)
        reply.headers.update(headers)
        return reply

    async def unexpected(self, request: Request, error: Exception) -> Response:
        return self.reply(INTERNAL, request.scope)
