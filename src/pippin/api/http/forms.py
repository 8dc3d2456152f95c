"""Reads multipart forms, as SDKs send files, within limits of size and number."""

import asyncio
from contextlib import closing
from typing import Final

from msgspec import Struct, field
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, MultipartState, parse_options_header
from starlette.requests import Request

from pippin.api.http.body import MIB, check_length, coding_of, pieces_of, read_body
from pippin.core.errors import ServerError

MOST_PARTS: Final = 128
LARGEST_FIELD: Final = MIB
FORM: Final = "multipart/form-data"


class Upload(Struct, frozen=True):
    """A file of a form. The client chose its name, which is shown but never opened."""

    filename: str
    data: bytes


class Form(Struct, frozen=True):
    """Fields and files of a form: for each name, everything that was sent under it."""

    fields: dict[str, list[str]] = field(default_factory=dict)
    files: dict[str, list[Upload]] = field(default_factory=dict)

    def only_file(self, name: str) -> Upload:
        """The one file that was sent under a name. Raises `ServerError` unless there is exactly one."""
        found = self.files.get(name, [])
        if len(found) != 1:
            problem = "is sent more than once." if found else "is required: send it as a file of the form."
            raise ServerError("invalid_request", f"`{name}` {problem}", name)
        return found[0]


def is_form(request: Request) -> bool:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == FORM


async def read_form(request: Request, limit_mb: float, idle_seconds: float) -> Form:
    """The fields and files of a form. Raises `ServerError` before more than the limit is held."""
    if not is_form(request):
        raise ServerError(
            "unsupported_media_type", f"Send the body as a form, with the header `Content-Type: {FORM}`."
        )
    _, options = parse_options_header(request.headers["content-type"])
    boundary = options.get(b"boundary", b"")
    if not 1 <= len(boundary) <= 256:
        raise malformed("its header names no boundary")
    limit = int(limit_mb * MIB)
    check_length(request.headers, limit)
    with closing(FormReader(boundary)) as reader:
        if coding_of(request.headers) is not None:
            await asyncio.to_thread(reader.feed, await read_body(request, limit_mb, idle_seconds))
            return await reader.finish()
        async for piece in pieces_of(request, limit, idle_seconds):
            reader.feed(piece)
        return await reader.finish()


def malformed(why: str) -> ServerError:
    return ServerError("invalid_request", f"The request body is not a valid form: {why}.")


class FormReader:
    """Parses one multipart body as it arrives. Raises `ServerError` for bytes that are not a form."""

    def __init__(self, boundary: bytes) -> None:
        self._form = Form()
        self._parts = 0
        self._name = ""
        self._filename: str | None = None
        self._files: list[tuple[str, str, bytearray]] = []
        self._data = bytearray()
        self._header, self._value = bytearray(), bytearray()
        self._headers: dict[bytes, bytes] = {}
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_part_data": self._take,
                "on_part_end": self._end_part,
                "on_header_field": self._take_name,
                "on_header_value": self._take_value,
                "on_header_end": self._end_header,
                "on_headers_finished": self._open,
            },
        )

    def feed(self, piece: bytes) -> None:
        try:
            self._parser.write(piece)
        except FormParserError as error:
            raise malformed(str(error)) from None

    async def finish(self) -> Form:
        if self._parser.state != MultipartState.END:
            raise malformed("it ends in the middle")
        for name, filename, data in self._files:
            upload = Upload(filename, await asyncio.to_thread(bytes, data))
            self._form.files.setdefault(name, []).append(upload)
        return self._form

    def close(self) -> None:
        # The parser and this object hold each other, and what was sent: the collector of cycles comes seldom.
        del self._parser

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > MOST_PARTS:
            raise malformed(f"it has more than {MOST_PARTS} parts")
        self._headers, self._data = {}, bytearray()

    def _take_name(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _take_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _end_header(self) -> None:
        self._headers[bytes(self._header).lower()] = bytes(self._value)
        self._header, self._value = bytearray(), bytearray()

    def _open(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        self._name = _text(options.get(b"name", b""))
        if not self._name:
            raise malformed("a part has no name")
        filename = options.get(b"filename")
        self._filename = None if filename is None else _text(filename)

    def _take(self, data: bytes, start: int, end: int) -> None:
        self._data += memoryview(data)[start:end]
        if self._filename is None and len(self._data) > LARGEST_FIELD:
            raise ServerError(
                "too_large", f"The field `{self._name[:64]}` of the form is too long.", self._name[:64]
            )

    def _end_part(self) -> None:
        if self._filename is None:
            self._form.fields.setdefault(self._name, []).append(_text(self._data))
        else:
            bare = self._name.removesuffix("[]").partition("[")[0]  # `image[]` and `image[0]` of arrays
            self._files.append((bare, self._filename[:255], self._data))


def _text(data: bytes | bytearray) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise malformed("a field is not UTF-8 text") from None
