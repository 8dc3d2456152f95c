"""One Realtime connection: handles a client's events one after the other, while the tasks they started go on."""

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterable
from typing import Any, Final

from msgspec import Struct
from starlette.websockets import WebSocket

from pippin.api.access.errors import INTERNAL
from pippin.api.dialects.shared.fields import decode_json, invalid, unsupported
from pippin.api.routing import Api
from pippin.api.sockets.channel import LONGEST_SECONDS, SPENT, Channel
from pippin.api.sockets.realtime import events as e
from pippin.api.sockets.realtime.calls import OPERATION, Calls, check_served, opened, problem_of, transcribe
from pippin.api.sockets.realtime.conversation import (
    Conversation,
    Entry,
    MessageItem,
    OutputItem,
    check_content,
    completed,
    sound_given,
    user_sound,
)
from pippin.api.sockets.realtime.input_sound import SHORTEST_MS, InputBuffer, Recording, sound_of
from pippin.api.sockets.realtime.response import Order, Response, encoded, new_id
from pippin.api.sockets.realtime.session import Settings, refuse_former, shown, with_session, with_shared
from pippin.core.errors import ErrorReport, ServerError, trace_of

log = logging.getLogger(__name__)

IDLE_SECONDS: Final = 900.0
"""A connection without events and running tasks is closed after a quarter of an hour."""


class Head(Struct):
    """The fields of every event."""

    type: Any = None
    event_id: Any = None


TOO_OLD: Final = 1008  # close code: policy violation
NO_BETA: Final = ErrorReport(
    kind="unsupported",
    message="The Realtime API's beta is not spoken here: use the current events, without `OpenAI-Beta`.",
    param="OpenAI-Beta",
)


async def serve(api: Api, socket: WebSocket) -> None:
    """Accept a connection and answer until the client leaves; refuse it if the client may not use the model."""
    calls = Calls(api, socket)
    try:
        if socket.query_params.get("intent") == "transcription":
            raise unsupported("intent", "recordings are transcribed by POST /v1/audio/transcriptions.")
        settings, hears = await opened(calls, socket.query_params.get("model") or "default")
    except ServerError as error:
        await socket.send_denial_response(api.access.errors.reply(error.report, socket.scope))
        return
    channel = Channel(socket, holds_back=True)
    if is_beta(socket):
        await _refuse_beta(channel)
        return
    await Connection(calls, channel, settings, hears=hears).serve()


def is_beta(socket: WebSocket) -> bool:
    """Whether the client asks for the beta version of the API: by a header, or, in a browser, by a subprotocol."""
    in_header = "realtime=v1" in socket.headers.get("openai-beta", "")
    return in_header or "openai-beta.realtime-v1" in socket.scope.get("subprotocols", [])


async def _refuse_beta(channel: Channel) -> None:
    """Accept the connection, as browsers can't read a refused one, and end it with an error."""
    await channel.open()
    try:
        await channel.send(encoded(e.ErrorEvent(error=problem_of(NO_BETA))))
        await channel.end(TOO_OLD, NO_BETA.message)
    finally:
        await channel.close()


class Connection:
    """Serves one client. Work beside the events runs as tasks in `_tasks`, which end with the connection."""

    def __init__(self, calls: Calls, channel: Channel, settings: Settings, *, hears: bool) -> None:
        """`hears`: the language model itself takes audio."""
        self._calls = calls
        self._channel = channel
        self._settings = settings
        self._hears = hears
        self._id = new_id("sess")
        self._conversation_id = new_id("conv")
        self._expires = int(time.time() + LONGEST_SECONDS)
        self._conversation = Conversation(channel.hold, channel.release)
        self._buffer = InputBuffer()
        self._response: Response | None = None
        self._responding: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._transcribing = asyncio.Lock()
        self._sending = asyncio.Lock()
        self._active = time.monotonic()

    async def serve(self) -> None:
        await self._channel.open()
        watch = asyncio.create_task(self._watch(), name="idle")
        try:
            await self._send(e.SessionCreated(session=shown(self._settings, self._id, self._expires)))
            async for message in self._channel.messages(lambda: self._tasks):
                self._active = time.monotonic()
                await self._answer(message)
        finally:
            await stop_all([watch, *self._tasks])
            await self._channel.close()

    async def _watch(self) -> None:
        while True:
            left = self._active + IDLE_SECONDS - time.monotonic()
            if left <= 0 and not self._tasks:
                await self._channel.end(SPENT, "Nothing was sent for a quarter of an hour; connect again.")
                return
            await asyncio.sleep(max(left, 1.0))

    async def _send(self, event: e.ServerEvent) -> None:
        self._active = time.monotonic()
        data = encoded(event)
        async with self._sending:
            await self._channel.send(data)

    async def _answer(self, message: str | bytes) -> None:
        """Handle an event; an error is reported in an event, and the connection goes on."""
        event_id: str | None = None
        large = self._calls.api.handler.large
        try:
            data = text_of(message)
            head = await large.do(len(data), decode_json, data, Head)
            event_id = head.event_id if isinstance(head.event_id, str) else None
            await self._do(*await large.do(len(data), self._read, data, head))
        except ServerError as error:
            await self._refuse(error.report, event_id)
        except Exception as error:
            log.error("An event of a Realtime connection failed.\n%s", trace_of(error))
            await self._refuse(INTERNAL, event_id)

    def _read(self, data: bytes, head: Head) -> tuple[str, e.ClientEvent, tuple[str, ...]]:
        """The type of an event, the event, and the names of its unknown fields. Raises `ServerError`."""
        if isinstance(head.type, str) and head.type in e.REFUSED:
            raise unsupported("type", e.REFUSED[head.type])
        contract = e.CONTRACTS.get(head.type) if isinstance(head.type, str) else None
        if contract is None:
            raise invalid("type", f"must be one of {', '.join(e.CONTRACTS)}.")
        event, unknown = contract.decode(data)
        refuse_former(unknown)
        return head.type, event, unknown

    async def _refuse(self, report: ErrorReport, event_id: str | None = None) -> None:
        log.debug("Refused an event of %s: %r", self._id, report.message)
        await self._send(e.ErrorEvent(error=problem_of(report, event_id)))

    async def _do(self, name: str, event: e.ClientEvent, unknown: tuple[str, ...]) -> None:
        self._calls.api.handler.note_unknown(OPERATION, unknown)
        match name, event:
            case "session.update", e.SessionUpdate():
                await self._update(event)
            case "conversation.item.create", e.ItemCreate():
                await self._create_item(event)
            case "conversation.item.retrieve", e.ItemNamed():
                await self._send(e.ItemRetrieved(item=self._conversation.find(event.item_id).item))
            case "conversation.item.delete", e.ItemNamed():
                self._conversation.delete(event.item_id)
                await self._send(e.ItemDeleted(item_id=event.item_id))
            case "input_audio_buffer.append", e.SoundAppend():
                await self._append(event.audio)
            case "input_audio_buffer.commit", _:
                await self._commit()
            case "input_audio_buffer.clear", _:
                self._channel.release(len(self._buffer.take().data))
                await self._send(e.SoundCleared())
            case "response.create", e.ResponseCreate():
                await self._create_response(event.response or e.ResponseFields())
            case "response.cancel", e.ResponseCancel():
                self._cancel(event.response_id)

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # The session

    async def _update(self, event: e.SessionUpdate) -> None:
        settings = with_session(self._settings, event.session)
        await check_served(self._calls, settings, "session", self._settings.transcription)
        self._settings = settings
        await self._send(e.SessionUpdated(session=shown(settings, self._id, self._expires)))

    # The conversation

    async def _create_item(self, event: e.ItemCreate) -> None:
        item = completed(event.item, event.item.id or new_id("item"))
        entry = Entry(item)
        if isinstance(item, MessageItem):
            check_content(item, "item")
            sound = sound_given(item, "item")
            if sound is not None:
                entry.recording = Recording(sound[: len(sound) - len(sound) % 2])
        elif isinstance(item, OutputItem) and not self._conversation.calls(item.call_id):
            raise invalid("item.call_id", f"{item.call_id!r} is no call of this conversation.")
        before = self._conversation.add(entry, event.previous_item_id)
        await self._send(e.ItemAdded(previous_item_id=before, item=item))
        await self._send(e.ItemDone(previous_item_id=before, item=item))
        self._hear(entry)

    def _hear(self, entry: Entry) -> None:
        """Start to transcribe the recording of an item, if the client or the model needs the text."""
        recording, settings = entry.recording, self._settings.transcription
        if recording is None or (self._hears and settings is None):
            return

        async def write() -> None:
            async with self._transcribing:
                await transcribe(self._calls, entry, recording, settings, self._send)
            if not self._hears:
                self._conversation.drop_recording(entry)

        entry.transcribing = self._start(write(), "transcription")

    # The sound that the client sends

    async def _append(self, audio: str) -> None:
        data = await self._calls.api.handler.large.do(len(audio), sound_of, audio)
        if not self._channel.hold(len(data)):
            raise ServerError(
                "overloaded",
                "The server holds as much sound of yours as it can; commit it, or clear it.",
                "audio",
            )
        try:
            self._buffer.append(data)
        except ServerError:
            self._channel.release(len(data))
            raise

    async def _commit(self) -> None:
        if self._buffer.milliseconds < SHORTEST_MS:
            raise ServerError(
                "invalid_request",
                f"The input buffer holds {self._buffer.milliseconds} ms of sound; a turn takes {SHORTEST_MS} ms at "
                "least.",
                code="input_audio_buffer_commit_empty",
            )
        recording = self._buffer.take()
        self._channel.release(len(recording.data))
        entry = Entry(user_sound(new_id("item")), recording)
        before = self._conversation.add(entry)
        await self._send(e.SoundCommitted(item_id=entry.id, previous_item_id=before))
        await self._send(e.ItemAdded(previous_item_id=before, item=entry.item))
        await self._send(e.ItemDone(previous_item_id=before, item=entry.item))
        self._hear(entry)

    # Responses

    async def _create_response(self, fields: e.ResponseFields) -> None:
        """Start a response. Raises `ServerError` if another one is running that was not told to stop."""
        if fields.input is not None:
            raise unsupported(
                "response.input",
                "add items by `conversation.item.create`: an answer belongs to its conversation.",
            )
        if self._active_response is not None and not self._active_response.stopped:
            raise ServerError(
                "conflict",
                "The conversation has an active response; wait for its end, or cancel it.",
                code="conversation_already_has_active_response",
            )
        settings = with_shared(self._settings, fields, "response")
        await check_served(self._calls, settings, "response", self._settings.transcription)
        if self._responding is not None:
            await asyncio.wait({self._responding})
        order = Order(
            settings=settings,
            entries=tuple(self._conversation),
            hears=self._hears,
            conversation=self._conversation,
            conversation_id=self._conversation_id,
            metadata=fields.metadata,
        )
        self._response = Response(self._calls, order, self._send)
        self._responding = self._start(self._response.run(), "response")

    @property
    def _active_response(self) -> Response | None:
        return self._response if self._responding is not None and not self._responding.done() else None

    def _cancel(self, id: str | None) -> None:
        response = self._active_response
        if response is None or id not in (None, response.id):
            raise ServerError(
                "invalid_request", "There is no such response to cancel.", code="response_cancel_not_active"
            )
        response.stop()


async def stop_all(tasks: Iterable[asyncio.Task[None] | None]) -> None:
    """Cancel tasks and wait until they end."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


def text_of(message: str | bytes) -> bytes:
    """The bytes of a text message. Raises `ServerError` for a binary one."""
    if isinstance(message, bytes):
        raise ServerError("invalid_request", "Send events as text messages that hold JSON.")
    return message.encode()
