"""One response: the language model's answer as items and events about them, spoken if the client asked for it."""

import asyncio
import base64
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from uuid import uuid4

import msgspec
from msgspec import UNSET, UnsetType

from pippin.api.access.errors import INTERNAL
from pippin.api.answers.answer import Answer
from pippin.api.dialects.shared.openai import error_body, warnings_of
from pippin.api.sockets.realtime import events as e
from pippin.api.sockets.realtime.calls import Calls, Send
from pippin.api.sockets.realtime.conversation import (
    CallItem,
    Content,
    Conversation,
    Entry,
    Item,
    MessageItem,
    messages_of,
)
from pippin.api.sockets.realtime.session import PCM, Settings, choice_of, tools_of
from pippin.core.conversation import Inline
from pippin.core.errors import ErrorReport, ServerError, trace_of
from pippin.core.events import (
    Event,
    Finished,
    PartDelta,
    PartEnded,
    PartStarted,
    SpeechChunk,
    Spoken,
    Usage,
)
from pippin.core.requests import GenerationRequest
from pippin.core.tasks import Speak

log = logging.getLogger(__name__)


SENTENCE_END: Final = re.compile(r"""(?<=[.!?…])["'”’)\]]*\s+|(?<=[。！？])|\n+""")
SHORTEST: Final = 24
"""The fewest characters spoken at once, unless the answer ends: a single word would sound like its own sentence."""
DELTA: Final = 24_000
"""Bytes of sound in one event: half a second at 24 kHz."""

Speaking = Callable[[str], AsyncIterator[bytes]]
"""The sound of a text, piece by piece."""


class Voice:
    """Speaks one message. `say` adds text; `finish` waits until all of it was spoken."""

    def __init__(self, speak: Speaking, longest: int, send: Callable[[str], Awaitable[None]]) -> None:
        """`longest` is the most characters for one call of the speech model. `send` gets sound in base64."""
        self._speak = speak
        self._longest = longest
        self._send = send
        self._written = ""
        self._sentences: asyncio.Queue[str | None] = asyncio.Queue()
        self._speaking = asyncio.create_task(self._run(), name="voice")

    def say(self, text: str) -> None:
        self._written += text
        while (cut := sentence_length(self._written, self._longest)) is not None:
            self._sentences.put_nowait(self._written[:cut])
            self._written = self._written[cut:]

    async def finish(self) -> None:
        """Wait until all text was spoken. Raises `ServerError` if the speech model fails."""
        for start in range(0, len(self._written), self._longest):
            self._sentences.put_nowait(self._written[start : start + self._longest])
        self._sentences.put_nowait(None)
        await self._speaking

    async def close(self) -> None:
        """Stop speaking; a second call does nothing."""
        self._speaking.cancel()
        await asyncio.gather(self._speaking, return_exceptions=True)

    async def _run(self) -> None:
        while (sentence := await self._sentences.get()) is not None:
            if not any(letter.isalnum() for letter in sentence):
                continue
            async for data in self._speak(sentence.strip()):
                for start in range(0, len(data), DELTA):
                    await self._send(base64.b64encode(data[start : start + DELTA]).decode())


def sentence_length(text: str, longest: int) -> int | None:
    """How many characters of an unfinished text can be spoken already; None to wait for more text."""
    for end in SENTENCE_END.finditer(text, 0, longest):
        if end.end() >= SHORTEST and end.end() < len(text):
            return end.end()
    if len(text) < longest:
        return None
    blank = text.rfind(" ", 1, longest)
    return blank + 1 if blank > 0 else longest


CANCELLED: Final = ErrorReport(kind="cancelled", message="The response was cancelled.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The input and settings of a response. `entries` are the items that the model sees, in order."""

    settings: Settings
    entries: tuple[Entry, ...]
    hears: bool  # the language model itself takes audio
    conversation: Conversation  # to which the answer is added
    conversation_id: str
    metadata: dict[str, str] | None = None


@dataclass(slots=True)
class OpenItem:
    """The item being written, and its index in the response."""

    item: Item
    index: int
    entry: Entry
    voice: Voice | None = None
    pieces: list[str] = field(default_factory=list)

    @property
    def id(self) -> str:
        return str(self.item.id)


def request_of(order: Order) -> GenerationRequest:
    """The request to the language model. Raises `ServerError` if the model needs a transcript that failed."""
    settings = order.settings
    hearings: dict[str, Inline] = {}
    for entry in order.entries:
        if order.hears and entry.recording is not None:
            hearings[entry.id] = Inline(entry.recording.wav(), "audio/wav")
        elif entry.failure is not None:
            raise entry.failure
    tools, toolsets = tools_of(settings, "session")
    return GenerationRequest(
        model=settings.model,
        messages=messages_of(settings.instructions, [entry.item for entry in order.entries], hearings),
        tools=tools,
        toolsets=toolsets,
        tool_choice=choice_of(settings, tools, toolsets, "session"),
        parallel_tool_calls=settings.parallel_tool_calls,
        sampling=settings.sampling,
        thinking=settings.thinking,
        max_tokens=settings.max_output_tokens,
        overflow="truncate" if settings.truncates else "error",
    )


class Response:
    """Runs once, with `run`; `stop` ends it early, and the text so far is kept."""

    def __init__(self, calls: Calls, order: Order, send: Send) -> None:
        self.id = f"resp_{uuid4().hex}"
        self._calls = calls
        self._order = order
        self._send = send
        self._output: list[Item] = []
        self._open: OpenItem | None = None
        self._answer: Answer | None = None
        self.stopped = False  # `stop` was called; the last events may still be sent
        self._stopping = asyncio.Event()
        self._usage: Usage | None = None
        self._warnings: list[str] | UnsetType = UNSET
        self._incomplete = False
        self._sound_tokens = 0

    def stop(self) -> None:
        self.stopped = True
        self._stopping.set()
        if self._answer is not None:
            self._answer.end(CANCELLED)

    async def run(self) -> None:
        """Answer, and send how the response ended. Only raises `CancelledError`."""
        await self._send(e.ResponseCreated(response=self._drawn("in_progress")))
        failure: ErrorReport | None = None
        try:
            await self._heard()
            await self._generate()
        except ServerError as error:
            failure = error.report
        except Exception as error:
            log.error("A response of a Realtime connection failed.\n%s", trace_of(error))
            failure = INTERNAL
        if self._open is not None:
            await self._end_item(self._open, interrupted=True)
        await self._send(e.ResponseDone(response=self._ended(failure)))

    async def _heard(self) -> None:
        """Wait for the transcripts of the entries, unless the response is stopped."""
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            for entry in self._order.entries:
                if entry.transcribing is not None and not self._order.hears:
                    await asyncio.wait({entry.transcribing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()

    async def _generate(self) -> None:
        if self.stopped:
            return
        async with self._calls.generation(request_of(self._order)) as answer:
            self._answer = answer
            if self.stopped:
                answer.end(CANCELLED)
            try:
                async for events in answer.batches():
                    # `Finished` comes in one batch with the end of the last part, whose item it makes incomplete.
                    self._incomplete = any(
                        isinstance(event, Finished) and event.reason == "length" for event in events
                    )
                    for event in events:
                        await self._take(event)
            finally:
                if self._usage is None:
                    self._usage = Usage(
                        prompt_tokens=answer.prompt_tokens, completion_tokens=answer.completion_tokens
                    )
                if self._open is not None and self._open.voice is not None:
                    await self._open.voice.close()

    async def _take(self, event: Event) -> None:
        match event:
            case PartStarted(kind="text"):
                await self._begin_message()
            case PartStarted(kind="tool_call", id=id, name=name):
                call = CallItem(
                    id=new_id("item"),
                    object="realtime.item",
                    status="in_progress",
                    name=name or "",
                    call_id=id or new_id("call"),
                    arguments="",
                )
                await self._begin(call)
            case PartStarted():  # reasoning, for which the API has no events, and tools that Pippin calls itself
                self._open = None
            case PartDelta(text=text) if text and self._open is not None:
                await self._say(self._open, text)
            case PartEnded() if self._open is not None:
                await self._end_item(self._open)
            case Finished(usage=usage):
                self._usage, self._warnings = usage, warnings_of([event])

    # Items

    async def _begin(self, item: Item) -> OpenItem:
        conversation = self._order.conversation
        entry = Entry(item)
        before = conversation.add(entry)
        self._open = opened = OpenItem(item, len(self._output), entry)
        self._output.append(item)
        await self._send(e.OutputItemAdded(response_id=self.id, output_index=opened.index, item=item))
        await self._send(e.ItemAdded(previous_item_id=before, item=item))
        return opened

    async def _begin_message(self) -> None:
        message = MessageItem(
            id=new_id("item"), object="realtime.item", status="in_progress", role="assistant", content=[]
        )
        opened = await self._begin(message)
        settings = self._order.settings
        if settings.speaks:
            message.content.append(Content(type="output_audio", transcript=""))
            part = e.Part(type="audio", transcript="")
            longest = self._calls.api.options.max_speech_chars
            opened.voice = Voice(self._speak, longest, self._sound)
        else:
            message.content.append(Content(type="output_text", text=""))
            part = e.Part(type="text", text="")
        await self._send(e.PartAdded(**self._place(opened), part=part))

    async def _say(self, opened: OpenItem, text: str) -> None:
        match opened.item:
            case MessageItem(content=[part]):
                opened.pieces.append(text)
                if opened.voice is not None:
                    opened.voice.say(text)
                    part.transcript = "".join(opened.pieces)
                    await self._send(e.SpokenDelta(**self._place(opened), delta=text))
                else:
                    await self._send(e.TextDelta(**self._place(opened), delta=text))
            case CallItem() as call:
                opened.pieces.append(text)
                place = self._item_place(opened)
                await self._send(e.ArgumentsDelta(**place, call_id=str(call.call_id), delta=text))
            case _:
                pass

    async def _end_item(self, opened: OpenItem, *, interrupted: bool = False) -> None:
        said = "".join(opened.pieces)
        status: Literal["completed", "incomplete"] = (
            "incomplete" if interrupted or self._incomplete else "completed"
        )
        match opened.item:
            case MessageItem(content=[part]) as message:
                message.status = status
                await self._end_message(opened, part, said, interrupted=interrupted)
            case CallItem() as call:
                call.arguments, call.status = said, status
                await self._send(
                    e.ArgumentsDone(
                        **self._item_place(opened), call_id=str(call.call_id), name=call.name, arguments=said
                    )
                )
            case _:
                pass
        self._open = None
        await self._send(e.OutputItemDone(response_id=self.id, output_index=opened.index, item=opened.item))
        conversation = self._order.conversation
        if conversation.has(opened.id):
            conversation.grown(opened.entry)
            await self._send(e.ItemDone(previous_item_id=conversation.before(opened.id), item=opened.item))

    async def _end_message(self, opened: OpenItem, part: Content, said: str, *, interrupted: bool) -> None:
        place = self._place(opened)
        if opened.voice is None:
            part.text = said
            await self._send(e.TextDone(**place, text=said))
            await self._send(e.PartDone(**place, part=e.Part(type="text", text=said)))
            return
        if not interrupted:
            await self._until_spoken(opened.voice)
        part.transcript = said
        await self._send(e.SoundDone(**place))
        await self._send(e.SpokenDone(**place, transcript=said))
        await self._send(e.PartDone(**place, part=e.Part(type="audio", transcript=said)))

    # Sound

    async def _until_spoken(self, voice: Voice) -> None:
        """Wait for the voice. Raises `ServerError` if the speech model fails, or if the response is stopped."""
        finishing = asyncio.create_task(voice.finish())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({finishing, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not finishing.done():
                await voice.close()
                raise ServerError.of(CANCELLED)
            finishing.result()
        finally:
            for task in (finishing, stopping):
                task.cancel()
            await asyncio.gather(finishing, stopping, return_exceptions=True)

    async def _speak(self, text: str) -> AsyncIterator[bytes]:
        settings = self._order.settings
        task = Speak(
            text=text,
            voice=settings.voice,
            speed=settings.speed,
            format="pcm",
            rate=PCM.rate,
            stream=True,
        )
        async with self._calls.task(task, settings.speech_model, counted=False) as answer:
            async for events in answer.batches():
                for event in events:
                    match event:
                        case SpeechChunk(data):
                            yield data
                        case Spoken(usage=usage):
                            self._sound_tokens += usage.completion_tokens

    async def _sound(self, delta: str) -> None:
        if self._open is not None and not self.stopped:
            await self._send(e.SoundDelta(**self._place(self._open), delta=delta))

    # Reports

    def _place(self, opened: OpenItem) -> dict[str, Any]:
        return {**self._item_place(opened), "content_index": 0}

    def _item_place(self, opened: OpenItem) -> dict[str, Any]:
        return {"response_id": self.id, "item_id": opened.id, "output_index": opened.index}

    def _ended(self, failure: ErrorReport | None) -> e.ResponseObject:
        if self.stopped:
            details = e.StatusDetails(type="cancelled", reason="client_cancelled")
            return self._drawn("cancelled", details)
        if failure is not None:
            error = error_body(failure).error
            told = {"type": error.type, "code": error.code, "message": error.message}
            return self._drawn("failed", e.StatusDetails(type="failed", error=told))
        if self._incomplete:
            return self._drawn("incomplete", e.StatusDetails(type="incomplete", reason="max_output_tokens"))
        return self._drawn("completed")

    def _drawn(
        self,
        status: Literal["in_progress", "completed", "cancelled", "incomplete", "failed"],
        details: e.StatusDetails | None = None,
    ) -> e.ResponseObject:
        settings = self._order.settings
        response = e.ResponseObject(
            id=self.id,
            status=status,
            status_details=details,
            output=list(self._output),
            conversation_id=self._order.conversation_id,
            output_modalities=settings.modalities,
            max_output_tokens=settings.max_output_tokens or "inf",
            metadata=self._order.metadata,
            usage=None if self._usage is None else figures(self._usage, self._sound_tokens),
            warnings=self._warnings,
        )
        if settings.speaks:
            spoken = e.SpokenAs(voice=settings.voice or "default")
            response.audio = e.ResponseAudio(output=spoken)
        return response


def new_id(kind: str) -> str:
    return f"{kind}_{uuid4().hex[:24]}"


def figures(usage: Usage, sound: int) -> e.UsageFigures:
    output = usage.completion_tokens + sound
    return e.UsageFigures(
        total_tokens=usage.prompt_tokens + output,
        input_tokens=usage.prompt_tokens,
        output_tokens=output,
        input_token_details=e.InputDetails(
            text_tokens=usage.prompt_tokens, cached_tokens=usage.cached_tokens
        ),
        output_token_details=e.OutputDetails(text_tokens=usage.completion_tokens, audio_tokens=sound),
    )


def encoded(event: e.ServerEvent) -> bytes:
    event.event_id = f"event_{uuid4().hex[:20]}"
    return msgspec.json.encode(event)
