"""Calls models for one connection: each call is a separate exchange with a line in the log, as over HTTP."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from starlette.requests import HTTPConnection, Request

from pippin.api.access.exchange import Exchange, exchange_of, write_line
from pippin.api.answers.answer import Answer, check_model
from pippin.api.http.body import NobodyWaits
from pippin.api.routing import VERSION, Api
from pippin.api.sockets.channel import asked_on, require_key
from pippin.api.sockets.realtime.events import ServerEvent
from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo, ModelKind
from pippin.core.requests import GenerationRequest
from pippin.core.tasks import Task

log = logging.getLogger(__name__)

PATH: Final = f"{VERSION}/realtime"
OPERATION: Final = "realtime"

Send = Callable[[ServerEvent], Awaitable[None]]


class Calls:
    """The models for one connection, with the rights and limits of its caller."""

    def __init__(self, api: Api, socket: HTTPConnection) -> None:
        self.api = api
        self._socket = socket

    @property
    def exchange(self) -> Exchange:
        """The connection's exchange."""
        return exchange_of(self._socket.scope)

    async def find(self, name: str, kind: ModelKind) -> ModelInfo | None:
        """The model with that name; None if there is none of this kind, or if the caller may not use it."""
        try:
            info = await self.api.service.find(name, kind)
            check_model(self.exchange, name, info)
        except ServerError:
            return None
        return info if info.kind in (kind, "scripted") else None

    @asynccontextmanager
    async def generation(self, wanted: GenerationRequest) -> AsyncIterator[tuple[Answer, Exchange]]:
        """The answer of a language model, closed on exit. Raises `ServerError`."""
        async with self._logged() as request:
            handler, exchange = self.api.handler, exchange_of(request.scope)
            operation = await handler.prepare_generation(
                exchange, wanted, request.headers, operation=OPERATION, stream=True
            )
            answer = Answer(operation, exchange, NobodyWaits(), handler.answers)
            async with _closed_at_the_end(answer):
                yield answer, exchange

    @asynccontextmanager
    async def task(self, task: Task, model: str, *, counted: bool) -> AsyncIterator[Answer]:
        """The answer of another model, closed on exit. If `counted`, it counts as a request of the caller."""
        async with self._logged() as request:
            handler, exchange = self.api.handler, exchange_of(request.scope)
            if counted:
                handler.admit(exchange)
            operation = await handler.prepare_task(
                exchange, task, model=model, operation=OPERATION, stream=True
            )
            answer = Answer(operation, exchange, NobodyWaits(), handler.answers)
            async with _closed_at_the_end(answer):
                yield answer

    @asynccontextmanager
    async def _logged(self) -> AsyncIterator[Request]:
        # A single call has no client that could disconnect: the connection ends its calls when the client leaves.
        request = Request(asked_on(self._socket, PATH).scope, _never)
        exchange = exchange_of(request.scope)
        try:
            require_key(self.exchange)
            yield request
        except ServerError as error:
            exchange.status, exchange.refusal = error.report.status, error.report.message
            raise
        finally:
            write_line("SEND", exchange, exchange.status or 200)


async def _never() -> Any:
    await asyncio.Event().wait()


@asynccontextmanager
async def _closed_at_the_end(answer: Answer) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await asyncio.shield(answer.close())
