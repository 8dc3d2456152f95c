"""`/v1/realtime` in mlx-vlm's form: the client speaks one question, gets one answer, and the connection ends.

The protocol is that of `mlx_vlm/server/realtime.py` (0.7.10), where a single model hears and speaks at once. Here the
answer begins when the question is committed, and fields that only such a model has (`token_id`, `audio_codes`) are
left out.
"""

import asyncio
import logging
from typing import Annotated, Any, Final, Literal
from uuid import uuid4

from msgspec import Meta, Struct, json, structs
from starlette.websockets import WebSocket

from pippin.api.access.errors import INTERNAL
from pippin.api.context import Api
from pippin.api.dialects.shared.engine_fields import Name
from pippin.api.dialects.shared.fields import convert, decode_json, invalid
from pippin.api.sockets.channel import Channel
from pippin.api.sockets.realtime import events as e
from pippin.api.sockets.realtime.calls import Calls
from pippin.api.sockets.realtime.conversation import Entry, user_sound
from pippin.api.sockets.realtime.input_sound import InputBuffer, Recording, sound_of
from pippin.api.sockets.realtime.opening import opened
from pippin.api.sockets.realtime.response import Order, Response, new_id
from pippin.api.sockets.realtime.session import Pcm, Settings, Transcription
from pippin.api.sockets.realtime.transcripts import transcribe
from pippin.core import parameters
from pippin.core.errors import ServerError
from pippin.core.traces import trace_of

log = logging.getLogger(__name__)

HEARD: Final = Pcm(rate=16000)
SPOKEN: Final = Pcm(rate=24000)
FRAME: Final = 1280
"""Samples in a frame of 80 ms, the unit of `frame_index` in events."""
FRAME_MS: Final = 80
DONE: Final = 1000  # close code: normal closure

Code = Literal["invalid_request", "session_initialization_failed", "inference_error"]


class Fields(Struct, kw_only=True):
    model: Name | None = None
    system_prompt: str | None = None
    seed: Annotated[int, parameters.SEED.wire_bounds] | None = None
    max_streaming_seconds: Annotated[float, Meta(gt=0)] | None = None


class Update(Struct, kw_only=True):
    session: Fields | None = None


class Append(Struct, kw_only=True):
    audio: str = ""
    sample_rate: int = HEARD.rate


async def serve(api: Api, socket: WebSocket) -> None:
    """Accept a connection and answer one question."""
    await VoiceChat(Calls(api, socket), Channel(socket, holds_back=True), socket).serve()


class VoiceChat:
    """Serves one client."""

    def __init__(self, calls: Calls, channel: Channel, socket: WebSocket) -> None:
        self._calls = calls
        self._channel = channel
        self._model = socket.query_params.get("model")
        self._id = f"sess_{uuid4().hex[:16]}"
        self._settings: Settings | None = None
        self._hears = False
        self._longest: float | None = None  # milliseconds
        self._buffer = InputBuffer(HEARD)
        self._response: Response | None = None
        self._answering: asyncio.Task[None] | None = None
        self._sending = asyncio.Lock()
        self._transcript = self._text = ""
        self._frames = 0  # heard

    async def serve(self) -> None:
        await self._channel.open()
        try:
            await self._send("session.created", session=self._shown("configuring"))
            async for message in self._channel.messages(self._running):
                if await self._answer(message):
                    break
        finally:
            if self._answering is not None:
                self._answering.cancel()
                await asyncio.gather(self._answering, return_exceptions=True)
            await self._channel.close()

    def _running(self) -> list[asyncio.Task[None]]:
        return [] if self._answering is None or self._answering.done() else [self._answering]

    async def _answer(self, message: str | bytes) -> bool:
        """Handle an event. Returns whether the connection is over."""
        try:
            event = decode_json(message.encode() if isinstance(message, str) else b"", dict[str, Any])
            return await self._do(event)
        except ServerError as error:
            await self._refuse("invalid_request", error.report.message)
        except Exception as error:
            log.error("An event of a voice chat failed.\n%s", trace_of(error))
            await self._refuse("inference_error", INTERNAL.message)
        return False

    async def _do(self, event: dict[str, Any]) -> bool:
        match event.get("type"):
            case "session.ping":
                await self._send("session.pong")
            case "session.update" if self._settings is not None:
                await self._refuse("invalid_request", "the active session cannot be reconfigured")
            case "session.update":
                await self._configure(convert(event, Update, "").session or Fields())
            case _ if self._settings is None:
                await self._refuse("invalid_request", "send session.update before audio")
            case "input_audio_buffer.append":
                self._append(convert(event, Append, ""))
            case "input_audio_buffer.commit":
                await self._commit(self._settings)
            case "session.cancel" | "response.cancel":
                return await self._cancel()
            case kind:
                raise invalid("type", f"can't be {str(kind)[:64]!r} here.")
        return False

    async def _configure(self, fields: Fields) -> None:
        model = fields.model or self._model or "default"
        try:
            settings, self._hears = await opened(self._calls, "realtime", model)
        except ServerError as error:
            await self._refuse("session_initialization_failed", error.report.message)
            return
        if fields.max_streaming_seconds is not None:
            self._longest = fields.max_streaming_seconds * 1000
        self._settings = structs.replace(
            settings,
            instructions=fields.system_prompt or "",
            seed=fields.seed,
            input=HEARD,
            output=SPOKEN,
            transcription=Transcription(),
            turn_detection=None,
        )
        await self._send("session.updated", session=self._shown("ready", model=model, frame_samples=FRAME))

    def _append(self, given: Append) -> None:
        if given.sample_rate != HEARD.rate:
            raise invalid("sample_rate", f"must be {HEARD.rate}, as `session.created` says.")
        if self._answering is not None:
            raise invalid("type", "can't be `input_audio_buffer.append` after the question was committed.")
        data = sound_of(given.audio, HEARD)
        if (
            self._longest is not None
            and self._buffer.end + Recording(data, HEARD).milliseconds > self._longest
        ):
            raise invalid("audio", f"lasts longer than the {self._longest / 1000:g} seconds of the session.")
        if not self._channel.hold(len(data)):
            raise ServerError("overloaded", "The server holds as much sound of yours as it can; commit it.")
        self._buffer.append(data)

    async def _commit(self, settings: Settings) -> None:
        if self._answering is not None:
            raise invalid("type", "can't be `input_audio_buffer.commit` twice.")
        recording = self._buffer.take()
        if not recording.data:
            raise invalid("type", "can't be `input_audio_buffer.commit` before sound was appended.")
        self._frames = -(-recording.milliseconds // FRAME_MS)
        await self._send("input_audio_buffer.committed")
        entry = Entry(user_sound(new_id("item")), recording)
        order = Order(
            settings=settings,
            entries=(entry,),
            hears=self._hears,
            conversation=None,
            conversation_id=self._id,
        )
        self._response = Response(self._calls, order, self._tell)
        self._answering = asyncio.create_task(self._run(self._response, entry, recording), name="voice chat")

    async def _run(self, response: Response, entry: Entry, recording: Recording) -> None:
        entry.transcribing = asyncio.create_task(
            transcribe(self._calls, entry, recording, Transcription(), self._tell), name="transcription"
        )
        try:
            await response.run()
        finally:
            entry.transcribing.cancel()
            await asyncio.gather(entry.transcribing, return_exceptions=True)
        await self._channel.end(DONE, "The question was answered.")

    async def _cancel(self) -> bool:
        if self._response is not None:
            self._response.stop("client_cancelled")
            return False  # the response reports the cancellation and ends the connection
        await self._send("response.cancelled", frame_index=self._frames)
        await self._channel.end(DONE, "The session was cancelled.")
        return True

    async def _tell(self, event: e.ServerEvent) -> None:
        """Send an event of OpenAI's API in mlx-vlm's form; most have no counterpart there."""
        match event:
            case e.TranscriptDelta(delta=delta):
                self._transcript += delta
                name = "conversation.item.input_audio_transcription.delta"
                await self._send(name, frame_index=self._frames, delta=delta, transcript=self._transcript)
            case e.TextDelta(delta=delta) | e.SpokenDelta(delta=delta):
                self._text += delta
                await self._send(
                    "response.text.delta", frame_index=self._frames, delta=delta, text=self._text
                )
            case e.SoundDelta(delta=delta):
                await self._send(
                    "response.audio.delta",
                    frame_index=self._frames,
                    delta=delta,
                    format="pcm16",
                    sample_rate=SPOKEN.rate,
                    channels=1,
                )
            case e.ResponseDone(response=response):
                await self._end(response)

    async def _end(self, response: e.ResponseObject) -> None:
        details = response.status_details
        if response.status == "cancelled":
            await self._send("response.cancelled", frame_index=self._frames)
        elif details is not None and details.error is not None:
            await self._refuse("inference_error", details.error["message"] or "")
        else:
            await self._send("response.done", frame_index=self._frames)

    def _shown(self, state: Literal["configuring", "ready"], **more: Any) -> dict[str, Any]:
        return {
            "id": self._id,
            "state": state,
            **more,
            "input_audio_format": {"type": "pcm16", "sample_rate": HEARD.rate},
            "output_audio_format": {"type": "pcm16", "sample_rate": SPOKEN.rate},
        }

    async def _refuse(self, code: Code, message: str) -> None:
        await self._send("error", error={"code": code, "message": message})

    async def _send(self, type: str, **fields: Any) -> None:
        event = {"event_id": f"event_{uuid4().hex[:16]}", "type": type, **fields}
        async with self._sending:
            await self._channel.send(json.encode(event))
