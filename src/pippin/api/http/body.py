"""Reads request bodies within their limits: size, time between pieces, media type."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request

from pippin.api.http.large_work import LARGE
from pippin.core.errors import ServerError

MIB: Final = 1 << 20
SLOWEST: Final = 4 << 10
"""Bytes a second, from which a slow client differs from one that means to hold a place."""


async def read_json_body(request: Request, limit_mb: float, idle_seconds: float) -> bytes:
    """The bytes of a JSON body. Raises `ServerError` before more than the limit is held."""
    check_json(request.headers)
    return await read_body(request, limit_mb, idle_seconds)


def check_json(headers: Headers) -> None:
    """A page of another site can send text and forms without asking; JSON it can't."""
    given = headers.get("content-type", "")
    media = given.partition(";")[0].strip().lower()
    if media == "application/json" or media.endswith("+json"):
        return
    if not media and "origin" not in headers:
        return
    raise ServerError(
        "unsupported_media_type", "Send the body as JSON, with the header `Content-Type: application/json`."
    )


async def read_body(request: Request, limit_mb: float, idle_seconds: float) -> bytes:
    limit = int(limit_mb * MIB)
    check_length(request.headers, limit)
    pieces: list[bytes] = []
    size = 0
    async for piece in pieces_of(request, idle_seconds):
        size += len(piece)
        if size > limit:
            raise too_large(limit)
        pieces.append(piece)
    return await joined(pieces, size)


async def joined(pieces: list[bytes], size: int) -> bytes:
    """Many megabytes take long to copy; others can go on meanwhile, because that is done without the interpreter."""
    return b"".join(pieces) if size <= LARGE else await asyncio.to_thread(b"".join, pieces)


def check_length(headers: Headers, limit: int) -> None:
    announced = headers.get("content-length", "0")
    if announced.isdigit() and int(announced[:20]) > limit:
        raise too_large(limit)


async def pieces_of(request: Request, idle_seconds: float) -> AsyncIterator[bytes]:
    """The body as it comes in; a client that stays silent for too long, or only ever drips, is told so."""
    stream = request.stream()
    began, size = time.monotonic(), 0
    while True:
        try:
            async with asyncio.timeout(idle_seconds):
                piece = await anext(stream, None)
        except TimeoutError:
            raise ServerError(
                "timeout", f"No more of the request body came for {idle_seconds:g} seconds."
            ) from None
        except ClientDisconnect:
            raise ServerError("cancelled", "The client left while sending its request.") from None
        if piece is None:
            return
        size += len(piece)
        if time.monotonic() - began > idle_seconds + size / SLOWEST:
            raise ServerError("timeout", f"The request body came more slowly than {SLOWEST} bytes a second.")
        yield piece


def too_large(limit: int) -> ServerError:
    return ServerError(
        "too_large", f"The request body is larger than the {limit / MIB:g} MiB that this server takes."
    )
