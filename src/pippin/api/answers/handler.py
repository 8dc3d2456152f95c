"""Answers requests to models: the one path of every dialect and kind, streamed and whole."""

import asyncio
import functools
import hashlib
import logging
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

import msgspec
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from pippin.api.access.exchange import Endpoint, Exchange, exchange_of
from pippin.api.access.guards import Limits
from pippin.api.access.keys import Allowance
from pippin.api.answers.answer import Answer, Operation, RunningAnswers, run_info
from pippin.api.answers.kept import KeptAnswer, KeptAnswers
from pippin.api.answers.media import MediaResolver
from pippin.api.dialects.base import AnyDialect, DecodeContext, Decoded, History, RunInfo, StreamEncoder
from pippin.api.dialects.shared.frames import EVENTS
from pippin.api.http.body import LARGE, EventStream, NobodyWaits, Presence, read_json_body
from pippin.api.http.forms import Form, read_form
from pippin.api.telemetry.ledger import Ledger, Observer
from pippin.config.errors import nearest
from pippin.config.options.server import ServerOptions
from pippin.core.conversation import Reasoning, Text, ToolCall
from pippin.core.errors import ServerError, renamed
from pippin.core.events import Counted, Event
from pippin.core.models import ModelKind
from pippin.core.requests import GenerationRequest
from pippin.core.tasks import CountTokens, Generate, Task
from pippin.service import Service
from pippin.service.tools.offers import Equipped, ToolOffers

log = logging.getLogger(__name__)

Read = TypeVar("Read")
Result = TypeVar("Result", bound=Event)

MCP_SERVERS: Final = "x-mcp-servers"
"""Header that names MCP servers, separated by commas, or `*`: for dialects and clients without a field for them."""

KEEP: Final = "x-keep-answer"
"""Header that lets a streamed answer go on without its client, which can read its events again by the request's id."""

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
            hint = meant(name, known)
            log.warning("Ignored the unknown field %r of %s; it is named here once.%s", name, operation, hint)


def meant(path: str, known: Collection[str]) -> str:
    """` Did you mean ...?` with the field at the same place whose name is near; empty if there is none."""
    place, _, name = path.rpartition(".")
    beside = (each.rpartition(".") for each in known)
    return nearest(name, [other for where, _, other in beside if where == place])


MOST_TOLD: Final = 4  # unknown fields that one answer names


NOT_KEPT: Final = (
    "Only who manages the server decides how long a model stays loaded; `keep_alive` was ignored."
)


# A client sends the same unknown fields with each request, and to compare names takes long.
@functools.lru_cache(1024)
def mistyped(unknown: tuple[str, ...], known: frozenset[str]) -> tuple[str, ...]:
    """A sentence for each unknown field whose name is nearly that of a known one at its place."""
    near = {name: meant(name, known) for name in unknown[:MOST_TOLD]}
    return tuple(f"There is no field `{name}`; it was ignored.{hint}" for name, hint in near.items() if hint)


class Handler:
    """Reads a request, and begins what it asks of a model: a generation, another task, or a count of tokens.

    An `Operation` can also be prepared here, for an `Answer` that is read elsewhere: on a WebSocket, in the background.
    """

    def __init__(
        self,
        service: Service,
        options: ServerOptions,
        observer: Observer,
        limits: Limits,
        media: MediaResolver,
        tools: ToolOffers,
        ledger: Ledger,
    ) -> None:
        self._service = service
        self._options = options
        self._limits = limits
        self.media = media
        self.tools = tools
        self._unknown = UnknownFields()
        self.answers = RunningAnswers(service, options, observer, limits, ledger)
        self.large = self.answers.large
        self.kept = KeptAnswers[KeptAnswer]()

    def adopt(self, options: ServerOptions) -> None:
        """Apply changed options to new requests."""
        self._options = options
        self.answers.adopt(options)
        self._limits.adopt(Allowance(options.rate_limit, options.token_rate_limit), options.max_concurrent)

    async def generate(
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
        exchange = exchange_of(request.scope)
        operation = await self.prepare(request, exchange, dialect, history=history, body=body)
        if (keep := request.headers.get(KEEP, "false").lower()) != "false":
            if keep != "true":
                raise ServerError("invalid_request", f"The header {KEEP} is `true` or `false`.", KEEP)
            return await self._keep(exchange, operation)
        return await self.answers.reply(request, exchange, operation)

    async def _keep(self, exchange: Exchange, operation: Operation) -> Response:
        """The stream of an answer that goes on without its client. Raises `ServerError` for one that is no stream of
        server-sent events, and for a failure before it begins."""
        if not operation.stream or operation.media != EVENTS:
            raise ServerError(
                "invalid_request", f"The header {KEEP} needs an answer of server-sent events.", KEEP
            )
        answer = Answer(operation, exchange, NobodyWaits(), self.answers)
        kept = KeptAnswer(answer)
        self.kept.keep(exchange.owner, exchange.id, kept)
        await kept.begun(within=self.answers.silence)
        if answer.failure is not None and not answer.accepted:
            raise ServerError.of(answer.failure)
        return self.follow(kept, -1)

    def follow(self, kept: KeptAnswer, after: int) -> Response:
        """The events of a kept answer after a number, from 0."""
        return EventStream(kept.follow(after, self.answers.silence), EVENTS)

    async def task(
        self, request: Request, task: Task, *, model: str, operation: str, admitted: bool = False
    ) -> list[Event]:
        """All events of a task other than generation; the last one is the result. Raises `ServerError`."""
        exchange = exchange_of(request.scope)
        if not admitted:
            self._limits.admit(exchange)
        prepared = await self.prepare_task(exchange, task, model=model, operation=operation)
        [events] = await self._events(request, prepared)
        return events

    async def result(
        self,
        request: Request,
        task: Task,
        kind: type[Result],
        *,
        model: str,
        operation: str,
        admitted: bool = False,
    ) -> Result:
        """The result of a task that ends with an event of this kind. Raises `ServerError`."""
        [*_, found] = await self.task(request, task, model=model, operation=operation, admitted=admitted)
        assert isinstance(found, kind)
        return found

    async def events(
        self, request: Request, wanted: Sequence[GenerationRequest], *, operation: str
    ) -> list[list[Event]]:
        """All events of each generation of a body that was counted when it was read. Raises `ServerError`."""
        exchange = exchange_of(request.scope)
        prepared = await self._operation(operation, wanted, request.headers, exchange, stream=False)
        return await self._events(request, prepared)

    async def _events(self, request: Request, operation: Operation) -> list[list[Event]]:
        answer = Answer(operation, exchange_of(request.scope), Presence(request.receive), self.answers)
        try:
            return await answer.gathered()
        finally:
            await answer.close()

    async def count(self, request: Request, dialect: AnyDialect, *, history: History | None = None) -> int:
        """The number of prompt tokens of the request in a body."""
        exchange = exchange_of(request.scope)
        body = await read_json_body(request, self._options.max_body_mb, self._options.body_timeout)
        [wanted] = (await self._decode(request, exchange, dialect, body, history)).requests
        task = CountTokens((await self._complete(wanted, request.headers, exchange)).request)
        name = f"{dialect.name}_count"
        return (await self.result(request, task, Counted, model=wanted.model, operation=name)).tokens

    async def prepare(
        self,
        request: Request,
        exchange: Exchange,
        dialect: AnyDialect,
        *,
        history: History | None = None,
        body: bytes | None = None,
    ) -> Operation:
        """The operation that a body asks for. Raises `ServerError`.

        `body`: the body, if the request was already counted and read.
        """
        if body is None:
            self._limits.admit(exchange)
            body = await read_json_body(request, self._options.max_body_mb, self._options.body_timeout)
        decoded = await self._decode(request, exchange, dialect, body, history)
        operation = await self._operation(
            dialect.name, decoded.requests, request.headers, exchange, stream=decoded.stream
        )
        if history is None:
            encoder = dialect.encoder(decoded.shape, operation.run)
        else:
            encoder = await asyncio.to_thread(dialect.encoder, decoded.shape, operation.run)
        warnings = operation.warnings + mistyped(decoded.ignored, dialect.contract.paths)
        return replace(operation, encoder=encoder, media=dialect.media, warnings=warnings)

    async def prepare_task(
        self,
        exchange: Exchange,
        task: Task,
        *,
        model: str,
        operation: str,
        encoder: StreamEncoder | None = None,
        media: str = EVENTS,
        stream: bool = False,
    ) -> Operation:
        """The operation of a task other than generation, which is not counted. Raises `ServerError`."""
        run = await self._run_info(model, exchange, task.model_kind)
        return Operation(
            name=operation,
            model=run.model,
            tasks=[task],
            starter=self._service,
            run=run,
            encoder=encoder,
            media=media,
            stream=stream or encoder is not None,
        )

    def admit(self, exchange: Exchange) -> None:
        """Count a request against its caller's limits. Raises `ServerError`."""
        self._limits.admit(exchange)

    async def json_of(
        self, request: Request, decode: Callable[[bytes], Read], *, counted: bool = True
    ) -> Read:
        """The decoded body of a request. If `counted`, it counts against its caller's limits before it is read; `task`
        counts it otherwise, or it runs no model."""
        if counted:
            self._limits.admit(exchange_of(request.scope))
        body = await read_json_body(request, self._options.max_body_mb, self._options.body_timeout)
        return await self.large.do(len(body), decode, body)

    async def form_of(self, request: Request) -> Form:
        """The form of a request to a model, which may hold files. It counts against its caller's limits."""
        self._limits.admit(exchange_of(request.scope))
        return await read_form(request, self._options.max_upload_mb, self._options.body_timeout)

    def note_unknown(self, operation: str, names: tuple[str, ...]) -> None:
        """Log fields that no contract knows."""
        self._unknown.note(operation, names)

    async def _decode(
        self, request: Request, exchange: Exchange, dialect: AnyDialect, body: bytes, history: History | None
    ) -> Decoded[Any]:
        """Decode a body with the dialect, on a thread if it is large.

        Unknown fields and the dialect's warnings are logged. Raises `ServerError`.
        """
        context = DecodeContext(
            headers=dict(request.headers),
            path=request.path_params,
            history=history or History(),
            searches=self._options.web_search is not None,
            stream_usage=self._options.stream_usage == "always",
        )
        if history is not None and len(body) <= LARGE:  # the stored history may be large
            decoded = await asyncio.to_thread(dialect.decode, body, context)
        else:
            decoded = await self.large.do(len(body), dialect.decode, body, context)
        self._unknown.note(dialect.name, decoded.ignored, dialect.contract.paths)
        for warning in decoded.warnings:
            log.warning("%s id=%s", warning, exchange.id)
        return decoded

    async def _operation(
        self,
        name: str,
        requests: Sequence[GenerationRequest],
        headers: Headers,
        exchange: Exchange,
        *,
        stream: bool,
    ) -> Operation:
        """The operation of these requests, which come from one body, without an encoder. Raises `ServerError`."""
        equipped = [await self._complete(wanted, headers, exchange) for wanted in requests]
        offers = any(each.offered for each in equipped)
        first = requests[0]
        return Operation(
            name=name,
            model=first.model,
            tasks=[Generate(each.request) for each in equipped],
            starter=self.tools.starter(self._service, equipped) if offers else self._service,
            run=await self._run_info(first.model, exchange, Generate.model_kind),
            stream=stream,
            timeout=first.timeout,
            warnings=() if exchange.manages or first.keep_alive is None else (NOT_KEPT,),
        )

    async def _run_info(self, model: str, exchange: Exchange, kind: ModelKind | None) -> RunInfo:
        """Like `run_info`; unless `allow_downloads` is set, users' keys may not name a model that is not here."""
        run = await run_info(self._service, model, exchange, kind)
        is_user = exchange.key is not None and not exchange.manages
        if not run.known and is_user and self._options.allow_downloads is None:
            await self._service.find(model, kind)  # raises the reason; starting the model would download it
        return run

    async def _complete(self, wanted: GenerationRequest, headers: Headers, exchange: Exchange) -> Equipped:
        """The request with its tools and media. Raises `ServerError` in the words of the client's API."""
        named = mcp_servers_of(headers)
        try:
            equipped = Equipped(wanted)
            if named or wanted.toolsets or wanted.web_search or self.tools.unasked:
                equipped = await self.tools.equip(wanted, named, allowed=exchange.may_use_tools)
            resolved = await self._resolved(equipped.request, headers, exchange)
        except ServerError as error:
            raise ServerError.of(renamed(error.report, wanted.names)) from error
        return replace(equipped, request=resolved)

    async def _resolved(
        self, wanted: GenerationRequest, headers: Headers, exchange: Exchange
    ) -> GenerationRequest:
        """The request to run: salted, with its media as bytes, and of lowest priority if it is a line of a batch."""
        salted = _salted(_within_rights(wanted, exchange), headers, exchange)
        if exchange.background:
            salted = msgspec.structs.replace(salted, priority=BACKGROUND)
        parts = (part for message in salted.messages or () for part in message.parts)
        if all(isinstance(part, Text | Reasoning | ToolCall) for part in parts):
            return salted
        return await self.media.resolve(salted)


def endpoint_of(handler: Handler, dialect: AnyDialect) -> Endpoint:
    """The endpoint of a dialect's address."""

    async def generate(request: Request) -> Response:
        return await handler.generate(request, dialect)

    return generate


def _within_rights(wanted: GenerationRequest, exchange: Exchange) -> GenerationRequest:
    """The request as its caller may ask it. How long a model stays loaded is decided by who manages the server: the
    wish of others is held to the operator's idle time. Raises `ServerError` if another's request is to run before
    those of everybody."""
    if exchange.manages:
        return wanted
    if wanted.priority > 0:
        raise ServerError(
            "permission",
            "Only who manages the server may put a request before those of others (a negative `priority`); leave it "
            "out, or give a number from 0.",
            "priority",
        )
    return msgspec.structs.replace(wanted, keep_alive=None)


def _salted(wanted: GenerationRequest, headers: Headers, exchange: Exchange) -> GenerationRequest:
    """The request with a salt that separates the prefix caches of tenants, and of keys if each has its own."""
    tenant = headers.get("x-apc-tenant") or headers.get("x-tenant-id") or ""
    parts = (wanted.cache_salt or "", tenant, exchange.cache_salt)
    if not any(parts):
        return wanted
    # As JSON, so that no part can be taken for the others; a salt alone is hashed too, or it could be another's hash.
    salt = hashlib.blake2s(msgspec.json.encode(parts), digest_size=16).hexdigest()
    return msgspec.structs.replace(wanted, cache_salt=salt)


def mcp_servers_of(headers: Headers) -> list[str]:
    """The MCP servers that the client names in a header."""
    return [name for part in headers.get(MCP_SERVERS, "").split(",") if (name := part.strip())]
