"""Brings the media that requests only refer to, for every dialect and kind. They are not decoded here."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pippin.api.dialects.shared.fields import invalid
from pippin.api.dialects.shared.media import MAX_URL, document_of, placed, source_of_url, too_large
from pippin.config.options.server import ServerOptions
from pippin.core.conversation import (
    Attachment,
    Audio,
    Document,
    Image,
    Inline,
    Message,
    Missing,
    Part,
    Url,
    Video,
)
from pippin.core.errors import ServerError
from pippin.core.requests import GenerationRequest
from pippin.core.tasks import Conversation, Embed, Rerank, media_of, newest_question, with_attachments

if TYPE_CHECKING:
    from pippin.api.answers.downloads import Downloads

MOST_ITEMS = 64
"""Images, audio and video clips in one request."""

LEFT_OUT_AT_ONCE = 32
"""Media are left out of a long conversation in steps of this many."""


class MediaResolver:
    """Turns every `Url` of a request into `Inline` bytes, or refuses it by name."""

    def __init__(self, options: ServerOptions) -> None:
        self._forbidden = "offline" if options.offline else "" if options.media_fetch else "no-media-fetch"
        self._options = options
        self._root = Path(options.media_path).resolve() if options.media_path else None
        self._most_bytes = int(options.media_max_mb * 2**20)
        self._seconds = options.media_timeout

    async def resolve(self, request: GenerationRequest) -> GenerationRequest:
        """The same request with all media as bytes. Raises `ServerError` naming the part."""
        parts = (part for message in request.messages or () for part in message.parts)
        if request.messages is None or not any(media_of(parts)):
            return request
        question = newest_question(request.messages, continued=request.continue_final)
        _check_count(request.messages[question].parts if question is not None else (), "messages")
        everywhere = sum(1 for message in request.messages for _ in media_of(message.parts))
        # Of those outside it, the oldest are left out; in steps, so that the prompt begins alike in several turns.
        surplus = -(-max(everywhere - MOST_ITEMS, 0) // LEFT_OUT_AT_ONCE) * LEFT_OUT_AT_ONCE
        clock = asyncio.get_running_loop().time
        last_fetch = clock() + self._seconds

        async def resolved(part: Attachment, where: str, index: int) -> Part:
            nonlocal surplus
            if index == question:
                return await self._part(part, where)
            # Its refusal would end the conversation for good: the model is told that it is missing.
            try:
                surplus -= 1
                if surplus >= 0:
                    message = f"A request may hold {MOST_ITEMS} media at most; send fewer."
                    raise ServerError("invalid_request", message, where)
                if isinstance(part.source, Url) and clock() > last_fetch:
                    raise invalid(where, "was not fetched: others took too long.")
                return await self._part(part, where)
            except ServerError as error:
                return msgspec.structs.replace(part, source=Missing(error.report))

        messages = await _resolved(request.messages, resolved)
        return msgspec.structs.replace(request, messages=messages)

    async def resolve_embed(self, task: Embed) -> Embed:
        """The same task with all media of its conversations as bytes. Raises `ServerError` naming the input."""
        conversations = (each for each in task.inputs if isinstance(each, Conversation))
        messages = (message for each in conversations for message in each.messages)
        _check_count((part for message in messages for part in message.parts), "input")

        async def inlined(given: Conversation) -> Conversation:
            messages = await _resolved(
                given.messages, lambda part, where, _: self._part(part, given.field or where)
            )
            return msgspec.structs.replace(given, messages=messages)

        inputs = [await inlined(each) if isinstance(each, Conversation) else each for each in task.inputs]
        return msgspec.structs.replace(task, inputs=tuple(inputs))

    async def resolve_rerank(self, task: Rerank) -> Rerank:
        """The same task with the media of query and documents as bytes. Raises `ServerError` naming which."""
        _check_count((part for each in task.documents for part in each.parts), "documents")
        documents = [
            msgspec.structs.replace(each, parts=await self._inlined(each.parts, f"documents[{number}]"))
            for number, each in enumerate(task.documents)
        ]
        query = await self._inlined(task.query_media, "query")
        return msgspec.structs.replace(task, documents=tuple(documents), query_media=query)

    async def _inlined(self, parts: tuple[Any, ...], param: str) -> tuple[Any, ...]:
        return tuple([await self._part(part, param) for part in parts])

    async def _part(self, part: Part, where: str) -> Part:
        match part:
            case Document(source=Url(url)):
                source = await self.fetch(url, where)
                found = await asyncio.to_thread(document_of, source, part.name, where)
                return placed(found, part.field)
            case Image(source=Url(url)) | Audio(source=Url(url)) | Video(source=Url(url)):
                return msgspec.structs.replace(part, source=await self.fetch(url, where))
            case _:
                return part

    async def fetch(self, url: str, param: str) -> Inline:
        """The bytes behind a data URI, a file inside the media folder, or an http(s) address."""
        scheme = url[:12].split(":", 1)[0].lower() if ":" in url[:12] else ""
        match scheme:
            case "data":
                # The length first: decoding would hold what is refused.
                if len(url) > self._most_bytes * 4 // 3 + MAX_URL:
                    raise too_large(param, self._most_bytes)
                source = await asyncio.to_thread(source_of_url, url, param)
                assert isinstance(source, Inline)
                return self._checked(source.data, source.mime, param)
            case "http" | "https":
                return await self._download(url, param)
            case "file" | "":
                return await asyncio.to_thread(self._file, url, param)
            case _:
                raise invalid(param, f"has an address of kind {scheme!r}; use data:, https: or http:.")

    def _file(self, url: str, param: str) -> Inline:
        """A file inside the media folder. A path is checked after all its links are resolved."""
        if self._root is None:
            raise invalid(
                param, "is a file path; send the bytes as a data: URI, or start the server with --media-path."
            )
        refusal = invalid(param, "names no file in the server's media folder.")
        try:
            path = (self._root / url.removeprefix("file://")).resolve(strict=True)
            if not path.is_relative_to(self._root) or not path.is_file():
                raise refusal
            if path.stat().st_size > self._most_bytes:
                raise too_large(param, self._most_bytes)
            data = path.read_bytes()
        except (OSError, ValueError, RuntimeError) as error:
            raise refusal from error
        return self._checked(data, None, param)

    async def _download(self, url: str, param: str) -> Inline:
        if self._forbidden:
            reason = (
                f"is an address to fetch, which `--{self._forbidden}` forbids; send the bytes as a data: URI."
            )
            raise invalid(param, reason)
        # What that imports takes as long as several steps, and most servers never fetch anything.
        downloads = await asyncio.to_thread(getattr, self, "downloads")
        data, mime = await downloads.get(url, param)
        return self._checked(data, mime, param)

    @cached_property
    def downloads(self) -> "Downloads":
        import anyio

        from pippin.api.answers.downloads import Downloads

        anyio.run(anyio.sleep, 0)  # what it imports when it first runs
        return Downloads(self._options)

    def _checked(self, data: bytes, mime: str | None, param: str) -> Inline:
        if not data:
            raise invalid(param, "is empty.")
        if len(data) > self._most_bytes:
            raise too_large(param, self._most_bytes)
        return Inline(data, mime)


def _check_count(parts: Iterable[Part], param: str) -> None:
    """Raises `ServerError` naming `param` where a request has too many media."""
    if (count := sum(1 for _ in media_of(parts))) > MOST_ITEMS:
        raise invalid(param, f"hold {count} media parts; send at most {MOST_ITEMS}.")


async def _resolved(
    messages: Iterable[Message], resolve: Callable[[Attachment, str, int], Awaitable[Part]]
) -> tuple[Message, ...]:
    """The messages with what `resolve` gives for each attachment, its field and the index of its message, in order."""
    given: list[tuple[Attachment, str, int]] = []

    def note(part: Attachment, where: str, index: int) -> tuple[()]:
        given.append((part, where, index))
        return ()

    with_attachments(messages, note)
    found = iter([await resolve(*each) for each in given])
    return with_attachments(messages, lambda *_: (next(found),))
