"""`/v1/audio/...`: speech to text, text to speech, and the list of voices."""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from pippin.api.access.exchange import exchange_of
from pippin.api.dialects.base import StreamEncoder
from pippin.api.dialects.shared.frames import EVENTS
from pippin.api.http.body import drawn_bytes
from pippin.api.kinds import speech, transcription
from pippin.api.routing import Api, both, json_reply
from pippin.core.errors import ServerError
from pippin.core.events import Voices
from pippin.core.tasks import ListVoices, Task


def routes(api: Api) -> list[BaseRoute]:
    audio = AudioRoutes(api)
    asked, told = transcription.TranscriptionRequest, transcription.TranscriptionReply
    written = sorted({*transcription.MEDIA.values(), transcription.LINES})
    sounds = sorted({*speech.MEDIA.values(), EVENTS})
    return [
        *both(
            "/audio/transcriptions",
            audio.transcribe,
            "POST",
            body=asked,
            answer=told,
            form=True,
            media=written,
        ),
        *both(
            "/audio/translations", audio.translate, "POST", body=asked, answer=told, form=True, media=written
        ),
        *both("/audio/speech", audio.speak, "POST", body=speech.SpeechRequest, media=sounds),
        *both("/audio/voices", audio.voices),
    ]


@dataclass(frozen=True)
class AudioRoutes:
    api: Api

    async def transcribe(self, request: Request) -> Response:
        """Speech as text"""
        return await self._transcribe(request, translate=False)

    async def translate(self, request: Request) -> Response:
        """Speech of any language as English text"""
        return await self._transcribe(request, translate=True)

    async def _transcribe(self, request: Request, *, translate: bool) -> Response:
        handler = self.api.handler
        form = await handler.form_of(request)
        # As in vllm-mlx, the query string has fields too; those of the form win.
        given = {name: [text] for name, text in request.query_params.items()} | form.fields
        fields, unknown = transcription.CONTRACT.decode_form(given, lists=transcription.LISTS)
        operation = "translations" if translate else "transcriptions"
        handler.note_unknown(operation, tuple(name for name in unknown if name != "file"))
        task = transcription.task_of(fields, form.only_file("file"), translate=translate)
        if fields.response_format == "ndjson":
            lines = transcription.TranscriptionLines(fields, task)
            return await self._stream(request, task, lines, fields.model, operation, transcription.LINES)
        if fields.stream:
            events = transcription.TranscriptionEvents()
            return await self._stream(request, task, events, fields.model, operation)
        found = await handler.task(request, task, model=fields.model, operation=operation)
        media = transcription.MEDIA.get(fields.response_format or "json", "application/json")
        drawn = await handler.large.do(drawn_bytes(found), transcription.draw, fields, task, found)
        return Response(drawn, headers={"content-type": media})

    async def speak(self, request: Request) -> Response:
        """Text as speech"""
        handler = self.api.handler
        asked = {name: [text] for name, text in request.query_params.items()}

        def decode(body: bytes) -> tuple[speech.SpeechRequest, tuple[str, ...]]:
            if not body and "input" in asked:  # vllm-mlx's form, whose default is wav
                return speech.CONTRACT.decode_form({"response_format": ["wav"], **asked})
            return speech.CONTRACT.decode(body)

        fields = await handler.fields_of(request, "speech", decode)
        reference = None
        if fields.ref_audio:
            reference = (await handler.media.fetch(fields.ref_audio, "ref_audio")).data
        options = self.api.options
        task = speech.task_of(
            fields, reference, longest=options.max_speech_chars, usual=options.speech_format
        )
        if fields.stream_format == "sse":
            return await self._stream(request, task, speech.SpeechEvents(), fields.model, "speech")
        media = speech.MEDIA[task.format]
        return await self._stream(request, task, speech.SpeechBytes(), fields.model, "speech", media)

    async def _stream(
        self, request: Request, task: Task, encoder: StreamEncoder, model: str, name: str, media: str = EVENTS
    ) -> Response:
        operation = await self.api.handler.prepare_task(
            request, task, model=model, operation=name, encoder=encoder, media=media
        )
        return await self.api.handler.answers.reply(request, operation)

    async def voices(self, request: Request) -> Response:
        """The voices of a model in memory: to look must not load one, nor download it"""
        name = request.query_params.get("model") or "default"
        info = await self.api.service.find(name, ListVoices.model_kind)
        if info.id not in {state.id for state in self.api.service.pool.states() if state.state == "loaded"}:
            if info.kind not in (ListVoices.model_kind, "scripted"):
                message = f"The model {info.id!r} is of kind {info.kind}: name one that speaks in `model`."
                raise ServerError("invalid_request", message, "model")
            raise ServerError(
                "conflict",
                f"The model {info.id!r} is not in memory; load it with POST /v1/models/load, or let it speak first.",
                "model",
            )
        self.api.handler.admit(exchange_of(request.scope))
        found = await self.api.handler.result(request, ListVoices(), Voices, model=name, operation="voices")
        data = [{"id": voice, "name": voice, "object": "audio.voice"} for voice in found.names]
        return json_reply({"object": "list", "data": data, "voices": list(found.names)})
