"""Codings of bodies: compressed requests are decoded within their limit; HTTP/1.0 clients get whole answers."""

import sys
import zlib
from collections.abc import Callable
from typing import Any, Final

from starlette.datastructures import Headers

from pippin.core.errors import ServerError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ZSTD: Final = "zstd"
WINDOWS: Final = {"gzip": 31, "x-gzip": 31, "deflate": 47}
"""The `wbits` of zlib for each coding that is decoded (RFC 9110, section 8.4.1). For `deflate` zlib's own header and
gzip's are both recognised."""
CODING: Final = "content-encoding"
"""The header that refusals of a coding name; `Accept-Encoding` then says what is decoded (RFC 9110, section 12.5.3)."""
ACCEPTED: Final = "gzip, deflate, zstd"
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_CHUNKED: Final = b"transfer-encoding: chunked\r\n"


def coding_of(headers: Headers) -> str | None:
    """The coding of a request's body; None for bytes as they are. Raises `ServerError` for one that is not decoded."""
    coding = headers.get(CODING, "identity").strip().lower()
    if coding in ("", "identity"):
        return None
    if coding not in (*WINDOWS, ZSTD):
        raise ServerError(
            "unsupported_media_type",
            f"The body is in the content coding '{coding}', which this server does not decode. Send it as it is, or "
            "compressed with gzip, deflate or zstd.",
            CODING,
        )
    return coding


def decoded(body: bytes, coding: str | None, limit: int) -> bytes | None:
    """The body without its coding; None if it is larger than `limit` bytes. Raises `ServerError` for damaged data."""
    if coding is None:
        return body
    reader: Any = zstd.ZstdDecompressor() if coding == ZSTD else zlib.decompressobj(WINDOWS[coding])
    try:
        plain: bytes = reader.decompress(body, limit + 1)
    except (zlib.error, zstd.ZstdError) as error:
        if coding == "deflate":  # some clients send it without zlib's header
            reader = zlib.decompressobj(-zlib.MAX_WBITS)
            try:
                plain = reader.decompress(body, limit + 1)
            except zlib.error:
                raise _damaged(coding, error) from None
        else:
            raise _damaged(coding, error) from None
    if len(plain) > limit:
        return None
    if not reader.eof:
        raise _damaged(coding, "it ends early")
    return plain


def _damaged(coding: str, reason: object) -> ServerError:
    return ServerError("invalid_request", f"The request body can't be decoded as {coding}: {reason}.")


class Unchunked:
    """Passes on an answer without the chunked coding, which HTTP/1.0 clients do not know (RFC 9112, section 6.1).

    The end of such an answer is the end of the connection.
    """

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._head: bytes | None = b""  # so far; None once it was passed on
        self._chunked = False
        self._left = 0  # bytes of the chunk that are still to come, and of its line break
        self._held = b""  # of the line with a chunk's size

    def __call__(self, data: bytes) -> None:
        if self._head is not None:
            self._head += data
            head, end, data = self._head.partition(b"\r\n\r\n")
            if not end:
                return
            plain = (head + b"\r\n").replace(_CHUNKED, b"")
            self._chunked = len(plain) != len(head) + 2
            self._head = None
            self._write(plain + (b"connection: close\r\n\r\n" if self._chunked else b"\r\n"))
        if not self._chunked:
            if data:
                self._write(data)
            return
        if pieces := self._pieces(data):
            self._write(b"".join(pieces))

    def _pieces(self, data: bytes) -> list[bytes]:
        pieces = []
        while data:
            if self._left > 2:
                pieces.append(data[: self._left - 2])
            taken = min(self._left, len(data))
            self._left, data = self._left - taken, data[taken:]
            if self._left or not data:
                break
            line, end, rest = (self._held + data).partition(b"\r\n")
            if not end:
                self._held = line
                break
            self._held, data = b"", rest
            size = int(line, 16)
            self._left = size + 2
        return pieces
