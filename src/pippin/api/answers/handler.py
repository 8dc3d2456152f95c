"""Answers requests to models: the one path of every dialect and kind, streamed and whole."""

import asyncio
import functools
import hashlib
import logging
import re
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar
from uuid import uuid4

import msgspec
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from pippin import __version__
from pippin.api.access.exchange import Endpoint, Exchange, exchange_of
from pippin.api.access.guards import Limits
from pippin.api.answers.answer import Answer, Observer, Operation, RunningAnswers
from pippin.api.answers.kept import KeptAnswer, KeptAnswers
from pippin.api.answers.media import MediaResolver
from pippin.api.dialects.base import AnyDialect, DecodeContext, Decoded, History, RunInfo, StreamEncoder
from pippin.api.dialects.shared.frames import EVENTS
from pippin.api.http.body import LARGE, EventStream, Presence, WatchedPresence, read_json_body
from pippin.api.http.forms import Form, read_form
from pippin.config.errors import nearest
from pippin.config.options.server import ServerOptions
from pippin.core.errors import ServerError, renamed
from pippin.core.events import Counted, Event
from pippin.core.models import ModelInfo, ModelKind
from pippin.core.requests import GenerationRequest
from pippin.core.tasks import CountTokens, Generate, Task, attachments
from pippin.service.service import Service
from pippin.service.tools.loop import Equipped, ToolOffers

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
    ) -> None:
        self._service = service
        self.limits = limits
        self.media = media
        self.tools = tools
        self._unknown: set[tuple[str, str]] = set()  # operations and the names of their fields
        self.answers = RunningAnswers(service, options, observer, limits)
        self.large = self.answers.large
        self.kept = KeptAnswers[KeptAnswer]()

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
        operation = await self.prepare(request, dialect, history=history, body=body)
        if (keep := request.headers.get(KEEP, "false").lower()) != "false":
            if keep != "true":
                raise ServerError("invalid_request", f"The header {KEEP} is `true` or `false`.", KEEP)
            return await self._keep(exchange_of(request.scope), operation)
        return await self.answers.reply(request, operation)

    async def _keep(self, exchange: Exchange, operation: Operation) -> Response:
        """The stream of an answer that goes on without its client. Raises `ServerError` for one that is no stream of
        server-sent events, and for a failure before it begins."""
        if not operation.stream or operation.media != EVENTS:
            raise ServerError(
                "invalid_request", f"The header {KEEP} needs an answer of server-sent events.", KEEP
            )
        answer = Answer(operation, exchange, Presence(), self.answers)
        kept = KeptAnswer(answer)
        self.kept.keep(exchange.owner, exchange.id, kept)
        await kept.begun(within=self.answers.options.keepalive_interval)
        if answer.failure is not None and not answer.accepted:
            raise ServerError.of(answer.failure)
        return self.follow(kept, -1)

    def follow(self, kept: KeptAnswer, after: int) -> Response:
        """The events of a kept answer after a number, from 0."""
        return EventStream(kept.follow(after, self.answers.options.keepalive_interval), EVENTS)

    async def task(
        self, request: Request, task: Task, kind: type[Result], *, model: str, operation: str
    ) -> tuple[Result, list[Event]]:
        """The result of a task other than generation, whose request was counted, and all its events. The last one, of
        this kind, is the result. Raises `ServerError`."""
        prepared = await self.prepare_task(request, task, model=model, operation=operation)
        [events] = await self._events(request, prepared)
        result = events[-1]
        assert isinstance(result, kind)
        return result, events

    async def events(
        self, request: Request, wanted: Sequence[GenerationRequest], *, operation: str
    ) -> list[list[Event]]:
        """All events of each generation of a body that was counted when it was read. Raises `ServerError`."""
        return await self._events(request, await self._operation(operation, wanted, request, stream=False))

    async def _events(self, request: Request, operation: Operation) -> list[list[Event]]:
        answer = Answer(operation, exchange_of(request.scope), WatchedPresence(request.receive), self.answers)
        try:
            return await answer.gathered()
        finally:
            await answer.close()

    async def count(self, request: Request, dialect: AnyDialect, *, history: History | None = None) -> int:
        """The number of prompt tokens of the request in a body."""
        body = await self.body_of(request)
        [wanted] = (await self._decode(request, dialect, body, history)).requests
        task = CountTokens((await self._complete(wanted, request)).request)
        name = f"{dialect.name}_count"
        counted, _ = await self.task(request, task, Counted, model=wanted.model, operation=name)
        return counted.tokens

    async def prepare(
        self,
        request: Request,
        dialect: AnyDialect,
        *,
        history: History | None = None,
        body: bytes | None = None,
    ) -> Operation:
        """The operation that a body asks for, given as to `generate`. Raises `ServerError`."""
        if body is None:
            body = await self.body_of(request)
        decoded = await self._decode(request, dialect, body, history)
        operation = await self._operation(dialect.name, decoded.requests, request, stream=decoded.stream)
        if history is None:
            encoder = dialect.encoder(decoded.shape, operation.run)
        else:
            encoder = await asyncio.to_thread(dialect.encoder, decoded.shape, operation.run)
        warnings = operation.warnings + mistyped(decoded.ignored, dialect.contract.paths)
        return replace(operation, encoder=encoder, media=dialect.media, warnings=warnings)

    async def prepare_task(
        self,
        request: Request,
        task: Task,
        *,
        model: str,
        operation: str,
        encoder: StreamEncoder | None = None,
        media: str = EVENTS,
    ) -> Operation:
        """The operation of a task other than generation, a stream if there is an `encoder`. Raises `ServerError`."""
        run = await self._run_info(model, exchange_of(request.scope), task.model_kind)
        return Operation(
            name=operation,
            model=run.model,
            tasks=[task],
            start=self._service.start,
            run=run,
            encoder=encoder,
            media=media,
            stream=encoder is not None,
        )

    async def body_of(self, request: Request, *, counted: bool = True) -> bytes:
        """The body of a request, in JSON. If `counted`, it counts against its caller's limits before it is read."""
        if counted:
            self.limits.admit(exchange_of(request.scope))
        return await read_json_body(
            request, self.answers.options.max_body_mb, self.answers.options.body_timeout
        )

    async def json_of(self, request: Request, decode: Callable[[bytes], Read]) -> Read:
        """The decoded body of a request, which counts against its caller's limits."""
        body = await self.body_of(request)
        return await self.large.do(len(body), decode, body)

    async def fields_of(
        self, request: Request, operation: str, decode: Callable[[bytes], tuple[Read, tuple[str, ...]]]
    ) -> Read:
        """The same, where `decode` also returns the fields that a contract does not know: they are logged."""
        fields, unknown = await self.json_of(request, decode)
        self.note_unknown(operation, unknown)
        return fields

    async def form_of(self, request: Request) -> Form:
        """The form of a request to a model, which may hold files. It counts against its caller's limits."""
        self.limits.admit(exchange_of(request.scope))
        return await read_form(request, self.answers.options.max_upload_mb, self.answers.options.body_timeout)

    def note_unknown(self, operation: str, names: tuple[str, ...], known: Collection[str] = ()) -> None:
        """Log each field that no contract knows, once, so that misspelt fields can be found; `known` are the names that
        may have been meant."""
        for given in names:
            place, dot, last = given.rpartition(".")
            name = place + dot + (last if FIELD.fullmatch(last) else "?")
            if (operation, name) in self._unknown or len(self._unknown) >= REMEMBERED:
                continue
            self._unknown.add((operation, name))
            hint = meant(name, known)
            log.warning("Ignored the unknown field %r of %s; it is named here once.%s", name, operation, hint)

    async def _decode(
        self, request: Request, dialect: AnyDialect, body: bytes, history: History | None
    ) -> Decoded[Any]:
        """Decode a body with the dialect, on a thread if it is large.

        Unknown fields and the dialect's warnings are logged. Raises `ServerError`.
        """
        context = DecodeContext(
            headers=dict(request.headers),
            path=request.path_params,
            history=history or History(),
            searches=self.answers.options.web_search is not None,
            stream_usage=self.answers.options.stream_usage == "always",
        )
        if history is not None and len(body) <= LARGE:  # the stored history may be large
            decoded = await asyncio.to_thread(dialect.decode, body, context)
        else:
            decoded = await self.large.do(len(body), dialect.decode, body, context)
        self.note_unknown(dialect.name, decoded.ignored, dialect.contract.paths)
        for warning in decoded.warnings:
            log.warning("%s id=%s", warning, exchange_of(request.scope).id)
        return decoded

    async def _operation(
        self, name: str, requests: Sequence[GenerationRequest], request: Request, *, stream: bool
    ) -> Operation:
        """The operation of these requests, which come from one body, without an encoder. Raises `ServerError`."""
        exchange = exchange_of(request.scope)
        equipped = [await self._complete(wanted, request) for wanted in requests]
        first, offered = requests[0], equipped[0].offered if len(equipped) == 1 else {}
        return Operation(
            name=name,
            model=first.model,
            tasks=[Generate(each.request) for each in equipped],
            start=self.tools.start(self._service, offered) if offered else self._service.start,
            run=await self._run_info(first.model, exchange, Generate.model_kind),
            stream=stream,
            timeout=first.timeout,
            warnings=() if exchange.manages or first.keep_alive is None else (NOT_KEPT,),
        )

    async def _run_info(self, model: str, exchange: Exchange, kind: ModelKind | None) -> RunInfo:
        """What encoders are told of the answer to a request of this kind for `model`.

        The answer's id is made here even if the client sent a request id, because a client may use its own twice.
        Raises `ServerError` for a model that the caller's key does not open, before anything is loaded or downloaded;
        unless `allow_downloads` is set, users' keys may not name a model that is not here.
        """
        try:
            info, known = await self._service.names.find(model, kind), True
        except ServerError:
            exchange.check_opens(model, None)
            is_user = exchange.key is not None and not exchange.manages
            if is_user and self.answers.options.allow_downloads is None:
                raise  # starting the model would download it
            info, known = ModelInfo(id=model, kind="language"), False  # `start` refuses or downloads it
        else:
            exchange.check_opens(model, info)
        return RunInfo(
            id=exchange.id if exchange.own_id else uuid4().hex,
            created=int(time.time()),
            model=info.id,
            fingerprint=fingerprint(info),
            known=known,
        )

    async def _complete(self, wanted: GenerationRequest, request: Request) -> Equipped:
        """The request to run, with its tools and with its media as bytes. Raises `ServerError` in the words of the
        client's API."""
        exchange = exchange_of(request.scope)
        named = [name for part in request.headers.get(MCP_SERVERS, "").split(",") if (name := part.strip())]
        try:
            # Most requests have neither tools of servers nor media.
            equipped = Equipped(wanted)
            if named or wanted.toolsets or wanted.web_search or self.tools.unasked:
                equipped = await self.tools.equip(wanted, named, allowed=exchange.may_use_tools)
            allowed = _as_allowed(equipped.request, request.headers, exchange)
            if any(attachments(allowed.messages or ())):
                allowed = await self.media.resolve(allowed)
        except ServerError as error:
            raise ServerError.of(renamed(error.report, wanted.names)) from error
        return replace(equipped, request=allowed)


def endpoint_of(handler: Handler, dialect: AnyDialect) -> Endpoint:
    """The endpoint of a dialect's address."""

    async def generate(request: Request) -> Response:
        return await handler.generate(request, dialect)

    return generate


def fingerprint(info: ModelInfo) -> str:
    """OpenAI's `system_fingerprint`: differs for each version of Pippin and each way in which a model runs."""
    facts = (__version__, info.id, info.path, info.quantization, info.dtype, info.context_window)
    return "fp_" + hashlib.blake2s(repr(facts).encode(), digest_size=5).hexdigest()


def _as_allowed(wanted: GenerationRequest, headers: Headers, exchange: Exchange) -> GenerationRequest:
    """The request as its caller may ask it, with a salt that separates the prefix caches of tenants, and of keys if
    each has its own; a line of a batch has the lowest priority.

    How long a model stays loaded is decided by who manages the server: the wish of others is held to the operator's
    idle time. Raises `ServerError` if another's request is to run before those of everybody.
    """
    changes: dict[str, Any] = {} if exchange.manages else {"keep_alive": None}
    if wanted.priority > 0 and not exchange.manages:
        raise ServerError(
            "permission",
            "Only who manages the server may put a request before those of others (a negative `priority`); leave it "
            "out, or give a number from 0.",
            "priority",
        )
    tenant = headers.get("x-apc-tenant") or headers.get("x-tenant-id") or ""
    parts = (wanted.cache_salt or "", tenant, exchange.cache_salt)
    if any(parts):
        # As JSON, so that no part can be taken for the others; a salt alone is hashed too, or it could be another's
        # hash.
        changes["cache_salt"] = hashlib.blake2s(msgspec.json.encode(parts), digest_size=16).hexdigest()
    if exchange.background:
        changes["priority"] = BACKGROUND
    return msgspec.structs.replace(wanted, **changes) if changes else wanted
