"""Answers requests to models: the one path of every dialect and kind, streamed and whole."""

import asyncio
import hashlib
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from pippin.api.access.exchange import Endpoint, Exchange, exchange_of
from pippin.api.access.keys import Allowance
from pippin.api.access.limits import Limits
from pippin.api.answers.answer import Answer, Operation, RunningAnswers, load_comment, run_info
from pippin.api.answers.media import MediaResolver
from pippin.api.dialects.base import (
    AnyDialect,
    DecodeContext,
    Decoded,
    Encoder,
    History,
    RunInfo,
    StreamEncoder,
)
from pippin.api.dialects.shared.frames import EVENTS
from pippin.api.http.body import (
    LARGE,
    EventStream,
    LargeWork,
    NobodyWaits,
    Presence,
    each_after,
    following,
    read_json_body,
)
from pippin.api.http.forms import Form, read_form
from pippin.api.telemetry.observer import Observer
from pippin.config.errors import nearest
from pippin.config.options.server import ServerOptions
from pippin.core.conversation import Reasoning, Text, ToolCall
from pippin.core.errors import ServerError, renamed
from pippin.core.events import Counted, Event
from pippin.core.models import ModelKind
from pippin.core.requests import GenerationRequest
from pippin.core.tasks import CountTokens, Generate, Task
from pippin.service import Requests
from pippin.service.service import Starter
from pippin.service.tools.offers import Equipped, ToolOffers

log = logging.getLogger(__name__)

Read = TypeVar("Read")

MCP_SERVERS: Final = "x-mcp-servers"
"""Header that names MCP servers, separated by commas, or `*`: for dialects and clients without a field for them."""

BACKGROUND: Final = -(2**31)
"""Priority of a batch's lines, below any that a client can ask for."""

REMEMBERED: Final = 256  # unknown fields
FIELD: Final = re.compile(r"[A-Za-z_]\w{0,63}(\[\d+\])?", re.ASCII)
"""What a misspelt field can look like. Other keys may be a client's content, which must not be logged."""


class UnknownFields:
    """Logs each field that no contract knows, once, so that misspelt fields can be found."""

    def __init__(self) -> None:
        self._named: set[tuple[str, str]] = set()

    def note(self, operation: str, names: tuple[str, ...], known: Collection[str] = ()) -> None:
        """Log each of `names` that was not logged before; `known` are the names that may have been meant."""
        for given in names:
            place, dot, last = given.rpartition(".")
            name = place + dot + (last if FIELD.fullmatch(last) else "?")
            if (operation, name) in self._named or len(self._named) >= REMEMBERED:
                continue
            self._named.add((operation, name))
            hint = "" if "." in name else nearest(name, known)
            log.warning("Ignored the unknown field %r of %s; it is named here once.%s", name, operation, hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A decoded body, the tasks that it asks for, and the encoder of its answer."""

    decoded: Decoded[Any]
    tasks: list[Generate]
    run: RunInfo
    operation: str  # for metrics and traces
    encoder: Any  # of the dialect's own type
    starter: Starter
    media: str = EVENTS  # media type of a stream


class Handler:
    """Reads a request, runs its tasks, and encodes the answer."""

    def __init__(
        self,
        service: Requests,
        options: ServerOptions,
        observer: Observer,
        limits: Limits,
        media: MediaResolver,
        tools: ToolOffers,
    ) -> None:
        self._service = service
        self._options = options
        self._limits = limits
        self._media = media
        self._tools = tools
        self._unknown = UnknownFields()
        self.large = LargeWork()
        self.answers = RunningAnswers(options, observer, limits)

    def adopt(self, options: ServerOptions) -> None:
        """Apply changed options to new requests."""
        self._options = options
        self.answers.adopt(options)
        self._limits.adopt(Allowance(options.rate_limit, options.token_rate_limit), options.max_concurrent)

    async def admit(self, exchange: Exchange) -> None:
        """Count a request against its caller's limits. Raises `ServerError`."""
        self._limits.admit(exchange)

    def endpoint(self, dialect: AnyDialect) -> Endpoint:
        """The endpoint of a dialect's address."""

        async def generate(request: Request) -> Response:
            return await self.answer(request, dialect)

        return generate

    async def answer(
        self,
        request: Request,
        dialect: AnyDialect,
        *,
        history: History | None = None,
        body: bytes | None = None,
    ) -> Response:
        """Read a body, decode it, run it, and reply. Raises `ServerError` for each failure that has a status code.

        `body`: the body, if the request was already counted and read.
        """
        return await self.respond(request, await self.prepare(request, dialect, history=history, body=body))

    async def prepare(
        self,
        request: Request,
        dialect: AnyDialect,
        *,
        history: History | None = None,
        body: bytes | None = None,
    ) -> Prepared:
        """Read and decode a body; nothing runs yet. Raises `ServerError`."""
        exchange = exchange_of(request.scope)
        if body is None:
            self._limits.admit(exchange)
            body = await read_json_body(request, self._options.max_body_mb, self._options.body_timeout)
        decoded = await self.decode(request, dialect, body, history)
        tasks, run, starter = await self._ready(request, decoded.requests)
        if history is None:
            encoder = dialect.encoder(decoded, run)
        else:
            encoder = await asyncio.to_thread(dialect.encoder, decoded, run)
        return Prepared(
            decoded=decoded,
            tasks=tasks,
            run=run,
            operation=dialect.name,
            encoder=encoder,
            starter=starter,
            media=dialect.media,
        )

    async def prepare_generation(
        self, request: Request, wanted: GenerationRequest, operation: str, *, stream: bool = True
    ) -> Prepared:
        """Prepare a generation that did not come as a body; the caller of this method encodes its events. It counts
        against the client's limits; nothing runs yet. Raises `ServerError`."""
        self._limits.admit(exchange_of(request.scope))
        tasks, run, starter = await self._ready(request, (wanted,))
        decoded = Decoded(requests=(wanted,), shape=None, stream=stream)
        return Prepared(
            decoded=decoded, tasks=tasks, run=run, operation=operation, encoder=None, starter=starter
        )

    async def _ready(
        self, request: Request, requests: Sequence[GenerationRequest]
    ) -> tuple[list[Generate], RunInfo, Starter]:
        """The tasks of the requests, what their encoder is told of the run, and what starts them."""
        equipped = [await self._complete(wanted, request) for wanted in requests]
        tasks = [Generate(each.request) for each in equipped]
        run = await self._run_info(requests[0].model, exchange_of(request.scope), Generate.model_kind)
        if any(each.offered for each in equipped):
            return tasks, run, self._tools.starter(self._service, equipped)
        return tasks, run, self._service

    async def respond(
        self, request: Request, prepared: Prepared, save: Callable[[], Awaitable[None]] | None = None
    ) -> Response:
        """Run the prepared tasks, and reply, whole or as a stream. Raises `ServerError` for a refusal.

        `save` is awaited before each piece of a stream, and before a whole reply.
        """
        answer = await self.open(request, prepared, Presence(request.receive))
        encoder: Encoder = prepared.encoder
        try:
            if not prepared.decoded.stream:
                whole = await answer.whole(encoder.whole, self.large)
                if save is not None:
                    await save()
                await answer.close()
                return Response(whole, media_type="application/json")
            await answer.started(within=self._options.keepalive_interval)
        except BaseException:
            await answer.close()
            raise
        pieces = self.pieces(answer, encoder)
        pieces = pieces if save is None else each_after(save, pieces)
        return EventStream(pieces, answer.close, media=prepared.media)

    async def open(self, request: Request, prepared: Prepared, presence: Presence) -> Answer:
        """Start the prepared tasks. Whoever opens an answer must close it. Raises `ServerError`."""
        return await self.answers.open(
            exchange_of(request.scope),
            Operation(
                name=prepared.operation,
                tasks=prepared.tasks,
                run=prepared.run,
                starter=prepared.starter,
                stream=prepared.decoded.stream,
                timeout=prepared.decoded.requests[0].timeout,
            ),
            presence,
        )

    async def open_generation(self, request: Request, wanted: GenerationRequest, operation: str) -> Answer:
        """Start a request that did not come as a body. It runs until it is closed, even if the client leaves.
        Whoever opens an answer must close it. Raises `ServerError`."""
        prepared = await self.prepare_generation(request, wanted, operation, stream=False)
        return await self.open(request, prepared, NobodyWaits())

    async def count(self, request: Request, dialect: AnyDialect, *, history: History | None = None) -> int:
        """The number of prompt tokens of the request in a body."""
        body = await read_json_body(request, self._options.max_body_mb, self._options.body_timeout)
        [wanted] = (await self.decode(request, dialect, body, history)).requests
        task = CountTokens((await self._complete(wanted, request)).request)
        [*_, counted] = await self.perform(
            request, task, model=wanted.model, operation=f"{dialect.name}_count"
        )
        assert isinstance(counted, Counted)
        return counted.tokens

    async def decode(
        self, request: Request, dialect: AnyDialect, body: bytes, history: History | None = None
    ) -> Decoded[Any]:
        """Decode a body with the dialect, on a thread if it is large.

        Unknown fields and the dialect's warnings are logged. Raises `ServerError`.
        """
        context = DecodeContext(
            headers=dict(request.headers),
            query=dict(request.query_params),
            history=history,
            stream_usage=self._options.stream_usage == "always",
        )
        if history is not None and len(body) <= LARGE:  # the stored history may be large
            decoded = await asyncio.to_thread(dialect.decode, body, context)
        else:
            decoded = await self.large.do(len(body), dialect.decode, body, context)
        self._unknown.note(dialect.name, decoded.ignored, dialect.contract.names)
        for warning in decoded.warnings:
            log.warning("%s id=%s", warning, exchange_of(request.scope).id)
        return decoded

    async def json_of(self, request: Request, decode: Callable[[bytes], Read]) -> Read:
        """The decoded body of a request to a model, which counts against its caller's limits before it is read."""
        self._limits.admit(exchange_of(request.scope))
        return await self.uncounted_json_of(request, decode)

    async def uncounted_json_of(self, request: Request, decode: Callable[[bytes], Read]) -> Read:
        """The decoded body of a request that `perform` counts later, or that runs no model."""
        body = await read_json_body(request, self._options.max_body_mb, self._options.body_timeout)
        return await self.large.do(len(body), decode, body)

    async def form_of(self, request: Request) -> Form:
        """The form of a request to a model, which may hold files. Counted like `json_of`."""
        self._limits.admit(exchange_of(request.scope))
        return await read_form(request, self._options.max_upload_mb, self._options.body_timeout)

    async def perform(
        self, request: Request, task: Task, *, model: str, operation: str, admitted: bool = False
    ) -> list[Event]:
        """All events of a task other than generation; the last one is the result. Raises `ServerError`."""
        if not admitted:
            self._limits.admit(exchange_of(request.scope))
        answer = await self.open_task(request, task, model=model, operation=operation, stream=False)
        try:
            return await answer.events()
        finally:
            await answer.close()

    async def stream(
        self,
        request: Request,
        task: Task,
        encoder: StreamEncoder,
        *,
        model: str,
        operation: str,
        media: str = EVENTS,
    ) -> Response:
        """Stream the events of a task other than generation. Raises `ServerError` for a failure before the first byte.

        If the encoder's `keep_alive` is empty (its format has no filler), the status is held back until there is
        data to send; a failure after that cuts the reply short.
        """
        answer = await self.open_task(request, task, model=model, operation=operation, stream=True)
        pieces = self.pieces(answer, encoder)
        try:
            first = b""
            while not first and (piece := await anext(pieces, None)) is not None:
                first = piece
            if answer.failure is not None:
                raise ServerError.of(answer.failure)
        except BaseException:
            await answer.close()
            raise
        return EventStream(
            following(first, pieces), answer.close, media=media, cut=lambda: answer.failure is not None
        )

    def note_unknown(self, operation: str, names: tuple[str, ...]) -> None:
        self._unknown.note(operation, names)

    def pieces(self, answer: Answer, encoder: StreamEncoder) -> AsyncIterator[bytes]:
        """The encoded stream of an open answer."""

        def progress() -> bytes:
            return load_comment(self._service.states(), answer.served)

        return answer.pieces(encoder, self._options.keepalive_interval, self.large, progress)

    async def open_task(
        self, request: Request, task: Task, *, model: str, operation: str, stream: bool
    ) -> Answer:
        """Start a task other than generation, without counting it. Whoever opens an answer must close it."""
        exchange = exchange_of(request.scope)
        run = await self._run_info(model, exchange, task.model_kind)
        wanted = Operation(name=operation, tasks=[task], run=run, starter=self._service, stream=stream)
        return await self.answers.open(exchange, wanted, Presence(request.receive))

    async def _run_info(self, model: str, exchange: Exchange, kind: ModelKind | None) -> RunInfo:
        """Like `run_info`; unless `allow_downloads` is set, users' keys may not name a model that is not here."""
        run = await run_info(self._service, model, exchange, kind)
        is_user = exchange.key is not None and not exchange.manages
        if not run.known and is_user and self._options.allow_downloads is None:
            await self._service.find(model, kind)  # raises the reason; starting the model would download it
        return run

    async def _complete(self, wanted: GenerationRequest, request: Request) -> Equipped:
        """The request with its tools and media. Raises `ServerError` in the words of the client's API."""
        try:
            equipped = await self._equipped(wanted, request)
            resolved = await self._resolved(equipped.request, request)
        except ServerError as error:
            raise ServerError.of(renamed(error.report, wanted.names)) from error
        return replace(equipped, request=resolved)

    async def _equipped(self, wanted: GenerationRequest, request: Request) -> Equipped:
        named = mcp_servers_of(request)
        if not (named or wanted.toolsets or self._tools.unasked):
            return Equipped(wanted)
        allowed = exchange_of(request.scope).may_use_tools
        return await self._tools.equip(wanted, named, allowed=allowed)

    async def _resolved(self, wanted: GenerationRequest, request: Request) -> GenerationRequest:
        """The request to run: salted, with its media as bytes, and of lowest priority if it is a line of a batch."""
        salted = self._salted(wanted, request)
        if exchange_of(request.scope).background:
            salted = msgspec.structs.replace(salted, priority=BACKGROUND)
        parts = (part for message in salted.messages or () for part in message.parts)
        if all(isinstance(part, Text | Reasoning | ToolCall) for part in parts):
            return salted
        return await self._media.resolve(salted)

    def _salted(self, wanted: GenerationRequest, request: Request) -> GenerationRequest:
        """The request with a salt that separates the prefix caches of tenants, and of keys if each has its own."""
        headers = request.headers
        salts = [headers.get("x-apc-tenant") or headers.get("x-tenant-id") or ""]
        if own := exchange_of(request.scope).cache_salt:
            salts.append(own)
        if not any(salts):
            return wanted
        joined = "\0".join([wanted.cache_salt or "", *salts])
        return msgspec.structs.replace(
            wanted, cache_salt=hashlib.blake2s(joined.encode(), digest_size=16).hexdigest()
        )


def mcp_servers_of(request: Request) -> list[str]:
    """The MCP servers that the client names in a header."""
    return [name for part in request.headers.get(MCP_SERVERS, "").split(",") if (name := part.strip())]
