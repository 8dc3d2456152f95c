"""The Responses API over a WebSocket: `response.create` and `response.steer` events in, the events of a stream out.

The protocol is https://developers.openai.com/api/docs/guides/websocket-mode. A connection answers one request after
the other, and remembers its last response even if the response is not stored.

A response to which a client says something (`response.steer`) ends at once as `steered`, and another goes on from it
with the client's words. If it has called tools of the client, the words wait until it is complete, and for the results
of the calls. Requests are decoded and answers encoded by the dialect, as over HTTP.
"""

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, Final, Literal
from uuid import uuid4

import msgspec
from msgspec import Meta, Struct
from starlette.requests import HTTPConnection, Request
from starlette.status import WS_1001_GOING_AWAY, WS_1008_POLICY_VIOLATION, WS_1009_MESSAGE_TOO_BIG
from starlette.websockets import WebSocket, WebSocketDisconnect

from pippin.api.access.exchange import SCOPE_KEY, Exchange, exchange_of, write_line
from pippin.api.answers.answer import Answer
from pippin.api.dialects.registry import VERSION
from pippin.api.dialects.responses.answer import STEERED
from pippin.api.dialects.responses.dialect import items_of
from pippin.api.dialects.responses.items import parts_of
from pippin.api.dialects.shared.fields import unsupported
from pippin.api.dialects.shared.frames import typed_frame
from pippin.api.dialects.shared.openai import error_body
from pippin.api.http.body import ARRIVING, HELD, MIB, HeldBytes, Presence, decoded_bytes
from pippin.api.routing import Api
from pippin.api.stored_responses.response_store import Item, OwnedHistory, ResponseStore, StoredResponse
from pippin.api.stored_responses.saving import SavingDialect, SavingEncoder
from pippin.core.decoding import convert, from_json
from pippin.core.errors import SHUTTING_DOWN, ErrorReport, ServerError
from pippin.core.events import Accepted, Finished

log = logging.getLogger(__name__)

WAITING: Final = 16
"""Messages that a client may send ahead of the one being answered."""

PROTOCOL: Final = "realtime"
"""The subprotocol that OpenAI's clients offer beside their key; browsers can't send a key in another way."""


class Channel(Presence):
    """An accepted connection, whose messages are read while an answer is written, so that a disconnect is noticed at
    once: it is a `Presence`, by which a running answer is told."""

    def __init__(self, socket: WebSocket) -> None:
        super().__init__()
        self._socket = socket
        self._messages: asyncio.Queue[str | bytes | None] = asyncio.Queue()
        self._reading: asyncio.Task[None] | None = None
        self.divert: Callable[[str | bytes], bool] = lambda message: False
        """Is offered each message when it comes; those that it takes are not among `messages`."""
        self.held: HeldBytes = socket.scope[HELD]
        """The bytes of messages that wait, and of what is kept after an answer."""
        self._stopping = False

    async def open(self) -> None:
        offered = self._socket.scope.get("subprotocols", [])
        await self._socket.accept(subprotocol=PROTOCOL if PROTOCOL in offered else None)
        self._reading = asyncio.create_task(self._read(), name="websocket")
        self._socket.scope["state"][ARRIVING].on_stop(self._stop)

    async def messages(self) -> AsyncIterator[str | bytes]:
        """The client's messages, until it leaves, or the server stops."""
        while not self._stopping:
            if (message := await self._messages.get()) is not None:
                yield message
                self.held.free(size_of(message))
            elif self.gone:
                return
        await self.end(WS_1001_GOING_AWAY, SHUTTING_DOWN.message)

    async def send(self, event: bytes) -> None:
        """Send one event, as JSON. Does nothing after the client has left."""
        if self.gone:
            return
        try:
            await self._socket.send_text(event.decode())
        except (WebSocketDisconnect, RuntimeError):  # it was closed, but the reader has not seen that yet
            self.left()

    async def end(self, code: int, reason: str) -> None:
        """Close the connection, unless the client has left meanwhile."""
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            await self._socket.close(code, reason)

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self) -> None:
        while (message := await self._socket.receive())["type"] != "websocket.disconnect":
            if self._messages.qsize() >= WAITING:
                await self.end(WS_1008_POLICY_VIOLATION, f"More than {WAITING} messages wait to be answered.")
                break
            text = message.get("text")
            data = text if text is not None else message.get("bytes") or b""
            if self.divert(data):
                self.held.free(size_of(data))
            else:
                self._messages.put_nowait(data)
        if message.get("code") == WS_1009_MESSAGE_TOO_BIG:
            log.warning("A WebSocket is closed: %s.", message.get("reason") or "a message is too large")
        self.left()

    def _stop(self) -> None:
        """The server stops: finish the current answer, and answer nothing after it."""
        self._stopping = True
        self._messages.put_nowait(None)

    def left(self) -> None:
        if not self.gone:
            self._messages.put_nowait(None)
            super().left()


def size_of(message: str | bytes) -> int:
    """The size of a message in bytes on the wire."""
    return len(message) if isinstance(message, bytes) or message.isascii() else len(message.encode())


def event_of(message: str | bytes) -> dict[str, Any]:
    """The event in a client's message. Raises `ServerError`."""
    if isinstance(message, bytes):
        raise ServerError("invalid_request", "Send events as text messages that hold JSON.")
    try:
        event = from_json(message, dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ServerError("invalid_request", f"The event is not valid JSON: {error}.") from None
    if not isinstance(event.get("type"), str):
        raise ServerError("invalid_request", "`type` is required: the name of the event.", "type")
    return event


def asked_on(socket: HTTPConnection, path: str) -> Request:
    """A stand-in for one request on a connection, with the connection's headers and rights, and its own exchange."""
    connection = exchange_of(socket.scope)
    exchange: Exchange = dataclasses.replace(
        connection,
        id=uuid4().hex,
        own_id=True,
        path=path,
        started=time.perf_counter(),
        status=None,
        gone=False,
        headers={},
        refusal="",
        facts={},
    )
    # Without a body to receive: it is given.
    return Request({**socket.scope, "type": "http", "method": "POST", "path": path, SCOPE_KEY: exchange})


PATH: Final = f"{VERSION}/responses"
CREATE: Final = "response.create"
WHOLE: Final = ("background", "stream", "generate")
"""Fields of a `response.create` that control the transport of the answer; the dialect does not see them."""


STEER: Final = "response.steer"
MOST_STEERS: Final = 16  # that wait for one response
ENDED: Final = ErrorReport(kind="cancelled", message="The client steered the response.", code=STEERED)


class UserMessage(Struct, kw_only=True, forbid_unknown_fields=True):
    role: Literal["user"]
    content: str | list[dict[str, Any]]
    type: Literal["message"] = "message"
    id: str | None = None
    status: str | None = None


class SteerEvent(Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["response.steer"]
    previous_response_id: str
    input: str | Annotated[list[UserMessage], Meta(min_length=1)]


class Steer(Struct, frozen=True):
    """Words for a response, accepted under an id."""

    id: str
    response: str
    input: Any  # as the client gave it
    size: int  # in bytes, of the event that brought it

    @property
    def named(self) -> dict[str, Any]:
        return {"id": self.id, "previous_response_id": self.response}


class Steered:
    """A response that is being made, and what was said to it so far."""

    def __init__(self, asked: dict[str, Any], encoder: SavingEncoder, answer: Answer) -> None:
        self.id = encoder.response().id
        self.steers: list[Steer] = []
        self.asked = asked
        self._encoder = encoder
        self._answer = answer
        self._frames: list[bytes] = []

    def take(self, event: dict[str, Any], size: int, hold: Callable[[int], bool]) -> None:
        """Accept or refuse a `response.steer` of `size` bytes for this response; `hold` finds room to keep them."""
        try:
            given = convert(event, SteerEvent).input
            for number, message in enumerate(given if isinstance(given, list) else ()):
                parts_of(message.content, f"input[{number}].content")
        except (msgspec.ValidationError, ServerError) as error:
            self._frames.append(refusal(event, "invalid_input", str(error), self._encoder))
            return
        if self.asked.get("conversation") or self.asked.get("context_management"):
            why = "A response that joins a conversation or compacts it by itself can't be steered."
            self._frames.append(refusal(event, "steering_not_supported", why, self._encoder))
        elif len(self.steers) >= MOST_STEERS or not hold(size):
            why = "Too much waits for this response already."
            self._frames.append(refusal(event, "too_many_pending_steers", why, self._encoder))
        else:
            steer = Steer(f"steer_{uuid4().hex}", self.id, event["input"], size)
            self.steers.append(steer)
            self._frames.append(self._encoder.told("response.steer.accepted", steer=steer.named))
            if not self._encoder.required_input():
                self._answer.end(ENDED)

    def frames(self) -> bytes:
        """The events that were not sent yet."""
        frames, self._frames = b"".join(self._frames), []
        return frames

    def pending(self) -> bytes:
        """The events that tell which results the accepted words wait for; none if they wait for none."""
        required = self._encoder.required_input()
        if not required:
            return b""
        waits = {"reason": "waiting_for_required_input", "required_input": required}
        return b"".join(
            self._encoder.told("response.steer.pending", steer=steer.named, **waits) for steer in self.steers
        )


def refusal(event: dict[str, Any], code: str, why: str, encoder: SavingEncoder | None = None) -> bytes:
    """The event that gives the words back; `encoder` is that of the response, if there is one."""
    steer = {name: event[name] for name in ("id", "previous_response_id", "input") if name in event}
    error = {"type": "invalid_request_error", "code": code, "message": why}
    if encoder is not None:
        return encoder.told("response.steer.failed", steer=steer, error=error)
    return typed_frame("response.steer.failed", sequence_number=0, steer=steer, error=error)


class ConnectionHistory(OwnedHistory):
    """The caller's history, plus the last response of the connection even if it is not stored."""

    def __init__(self, store: ResponseStore, owner: str, hold: Callable[[int], None]) -> None:
        super().__init__(store, owner, hold)
        self.last: str | None = None  # the id of the last response
        self.kept = b""
        """The last response and all items before it, encoded: decoded they take many times as much."""

    def items(self, response_id: str) -> list[Item]:
        if response_id != self.last:
            return super().items(response_id)
        self._hold(decoded_bytes(self.kept))
        return from_json(self.kept, StoredResponse).items

    def keep(self, id: str, turn: StoredResponse) -> None:
        if turn.response["store"]:
            super().keep(id, turn)
        before = self.items(turn.previous) if turn.previous is not None else turn.before
        last = StoredResponse(response=turn.response, input=turn.input, before=before)
        self.last, self.kept = id, msgspec.json.encode(last)

    def forget(self, id: object) -> None:
        """Drop the connection's copy of a response: a failed turn ends the chain that it continues."""
        if self.last == id:
            self.last, self.kept = None, b""


class ResponsesSocket:
    """Serves one connection."""

    def __init__(self, api: Api, socket: WebSocket) -> None:
        self._api = api
        self._socket = socket
        self._channel = Channel(socket)
        self._channel.divert = self._steers
        self._running: Steered | None = None
        self._waiting: list[Steer] = []  # words for the last response, which wait for results of its calls
        self._history = ConnectionHistory(api.store, exchange_of(socket.scope).owner, self._hold)
        self._held = 0  # bytes of what the running turn has decoded
        self._kept = 0  # bytes of what is kept of the last response
        self._dialect = SavingDialect(self._history, keep_all=True)

    async def serve(self) -> None:
        """Answer until the client leaves."""
        await self._channel.open()
        try:
            async for message in self._channel.messages():
                turn: str | bytes | None = message
                while turn is not None:
                    turn = await self._turn(turn)
        finally:
            await self._channel.close()

    async def _turn(self, message: str | bytes) -> str | bytes | None:
        """Answer one message; returns the message that goes on from the answer with what was said meanwhile."""
        request = asked_on(self._socket, PATH)
        exchange = exchange_of(request.scope)
        try:
            await self._answer(request, message)
            return await self._after()
        except ServerError as error:
            exchange.status, exchange.refusal = error.report.status, error.report.message
            event = {"status": exchange.status, "error": error_body(error.report).error, "type": "error"}
            await self._channel.send(msgspec.json.encode(event))
            return None
        finally:
            self._running = None
            write_line("SEND", exchange, exchange.status or 200)
            self._channel.held.free(self._held + self._kept)
            self._held, self._kept = 0, len(self._history.kept)
            if not self._channel.held.take(self._kept):
                self._history.forget(self._history.last)
                self._kept = 0

    def _hold(self, size: int) -> None:
        """Count bytes until the end of the turn. Raises `ServerError`."""
        self._channel.held.need(size)
        self._held += size

    def _steers(self, message: str | bytes) -> bool:
        """Take what is said to the running response."""
        if self._running is None or isinstance(message, bytes) or STEER not in message:
            return False
        try:
            event = event_of(message)
        except ServerError:
            return False
        if event["type"] != STEER or event.get("previous_response_id") != self._running.id:
            return False
        self._running.take(event, size_of(message), self._channel.held.take)
        return True

    async def _after(self) -> str | None:
        """What follows an answer: nothing, words that wait for results of its calls, or the next request."""
        running, self._running = self._running, None
        if running is None:
            return None
        self._waiting += running.steers
        pending = running.pending()
        await self._send_frames(running.frames() + pending)
        if pending or not running.steers:
            return None
        # The next request goes on from the response; the accepted words are yet to be put in front of its input.
        successor = running.asked | {"input": [], "previous_response_id": running.id}
        return msgspec.json.encode(successor).decode()

    async def _answer(self, request: Request, message: str | bytes) -> None:
        event = self._event_of(message)
        opened = exchange_of(self._socket.scope)
        if opened.key is not None and opened.key not in self._api.keys.keys:
            raise ServerError(
                "authentication", "The API key of this connection was withdrawn or changed; connect again."
            )
        previous = event.get("previous_response_id")
        if event["type"] == STEER:
            code = "response_already_completed" if previous == self._history.last else "response_not_found"
            await self._send_frames(
                refusal(event, code, "No such response is being made on this connection.")
            )
            return
        said = [steer for steer in self._waiting if steer.response == previous]
        try:
            await self._respond(request, event, said)
        except ServerError as error:
            self._history.forget(previous)
            for steer in said:
                given = steer.named | {"input": steer.input}
                why = error.report.message
                await self._send_frames(refusal(given, "successor_creation_failed", why))
            raise
        finally:
            self._waiting = [steer for steer in self._waiting if steer not in said]
            self._channel.held.free(sum(steer.size for steer in said))

    async def _respond(self, request: Request, event: dict[str, Any], said: list[Steer]) -> None:
        """Answer the event, whose input begins with what was `said` to the response that it goes on from."""
        fields = {name: value for name, value in event.items() if name not in ("type", *WHOLE)}
        if said:
            given = (*(steer.input for steer in said), event.get("input"))
            fields["input"] = [item for each in given for item in items_of(each)]
        body = msgspec.json.encode(fields | {"stream": True})
        handler = self._api.handler
        exchange = exchange_of(request.scope)
        handler.limits.admit(exchange)
        operation = await handler.prepare(request, self._dialect, history=self._history, body=body)
        encoder = operation.encoder
        assert isinstance(encoder, SavingEncoder)
        if event.get("generate") is False:
            # A later request can continue its input.
            begun = encoder.start([Accepted(0)])
            await self._send_frames(begun + encoder.event(Finished(0, "stop")) + encoder.end())
            await encoder.save()
            return
        answer = Answer(operation, exchange, self._channel, handler.answers)
        self._running = running = Steered(event, encoder, answer)
        try:
            await answer.started()
            async for piece in answer.pieces():
                frames = running.frames() + piece
                await encoder.save()
                await self._send_frames(frames)
        finally:
            await answer.close()

    def _event_of(self, message: str | bytes) -> dict[str, Any]:
        """The `response.create` or `response.steer` in a message, if its answer can be sent on this connection."""
        most = self._api.options.max_body_mb
        if len(message) > most * MIB:
            raise ServerError("too_large", f"The event is larger than {most:g} MiB.")
        event = event_of(message)
        if event["type"] not in (CREATE, STEER):
            raise unsupported("type", f"only `{CREATE}` and `{STEER}` events are answered here.")
        if event.get("background"):
            raise unsupported(
                "background", "a connection waits for its responses; send it to POST /v1/responses."
            )
        return event

    async def _send_frames(self, frames: bytes) -> None:
        for data in events_of(frames):
            await self._channel.send(data)


def events_of(frames: bytes) -> list[bytes]:
    """The JSON of server-sent events, without comments and without `[DONE]`."""
    lines = (line for line in frames.split(b"\n") if line.startswith(b"data: "))
    return [data for line in lines if (data := line.removeprefix(b"data: ")) != b"[DONE]"]
