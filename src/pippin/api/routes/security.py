"""`/v1/security`: security findings about the settings of the running server, for administrators."""

import asyncio

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from pippin.api.access.exchange import exchange_of
from pippin.api.access.guards import NO_ADMIN, NO_KEY
from pippin.api.access.posture import SecurityFinding, security_findings
from pippin.api.routing import Api, both, json_reply
from pippin.core.errors import ServerError


class SecurityReport(Struct, kw_only=True):
    findings: list[SecurityFinding]


def routes(api: Api) -> list[BaseRoute]:
    async def report(request: Request) -> Response:
        """What the settings mean for security. It tells of the operator's files, and is for administrators."""
        exchange = exchange_of(request.scope)
        if not exchange.manages:
            raise ServerError("permission", NO_ADMIN if exchange.key else NO_KEY)
        return json_reply(SecurityReport(findings=await asyncio.to_thread(security_findings, api.options)))

    return [*both("/security", report, answer=SecurityReport)]
