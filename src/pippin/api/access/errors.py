"""Draws errors as replies, each in the shape of the dialect that was spoken."""

import logging
import math
import re
from collections.abc import Mapping

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from pippin.api.access.exchange import exchange_of
from pippin.api.dialects.base import AnyDialect
from pippin.api.dialects.registry import dialect_of_path
from pippin.core.errors import ErrorReport, ServerError

log = logging.getLogger(__name__)

_CLIENTS_WORDS = re.compile(
    r"(invalid (?:enum )?value) '.*'"
    r"|(The JSON schema can't be honoured|The (?:GBNF )?grammar can't be (?:compiled|read)"
    r"|The model's chat template can't render these messages).*",
    re.DOTALL,
)
"""What a client wrote is told to it where it is wrong, but is not for the log: it may be a prompt, or be secret."""

INTERNAL = ErrorReport(kind="internal", message="The server failed; its log has the reason.")


def _answered(error: HTTPException) -> str:
    return (error.headers or {}).get("Allow", "other methods")


class Errors:
    """Draws errors as replies, each in the shape of the dialect whose address was asked."""

    def __init__(self, dialects: Mapping[str, AnyDialect]) -> None:
        self._dialects = dialects

    def reply(self, report: ErrorReport, scope: Scope) -> Response:
        """The error as the dialect draws it whose address this is; what it says goes to the access log too."""
        exchange = exchange_of(scope)
        exchange.refusal = _CLIENTS_WORDS.sub(r"\1\2", report.message)
        dialect = dialect_of_path(self._dialects, exchange.path)
        return self.reply_in(dialect, report, exchange.id)

    def reply_in(self, dialect: AnyDialect, report: ErrorReport, request_id: str) -> Response:
        headers = {"request-id": request_id}
        if report.retry_after is not None:
            headers["retry-after"] = str(max(1, math.ceil(report.retry_after)))
        elif report.kind in ("rate_limited", "overloaded"):
            headers["retry-after"] = "1"
        if report.kind == "authentication":
            headers["www-authenticate"] = "Bearer"
        body = dialect.error(report, request_id)
        return Response(body, dialect.status(report), headers, media_type="application/json")

    async def server_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, ServerError)
        return self.reply(error.report, request.scope)

    async def http_error(self, request: Request, error: Exception) -> Response:
        """The reply to an error of Starlette's router: an unknown address, or a method that it does not answer."""
        assert isinstance(error, HTTPException)
        match error.status_code:
            case 404:
                report = not_found()
            case 405:
                report = ErrorReport(
                    kind="method_not_allowed",
                    message=f"This address does not answer {request.method}; it answers {_answered(error)}.",
                )
            case _:
                report = ErrorReport(kind="invalid_request", message=error.detail)
        reply = self.reply(report, request.scope)
        for name, value in (error.headers or {}).items():
            reply.headers[name] = value
        return reply

    async def unexpected(self, request: Request, error: Exception) -> Response:
        return self.reply(INTERNAL, request.scope)


def not_found() -> ErrorReport:
    return ErrorReport(
        kind="not_found", message="There is nothing at this address; /docs lists what there is."
    )
