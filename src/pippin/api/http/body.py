"""Bodies of requests and replies.

Request bodies are bounded: the media type, size and speed of each, and the memory of all together. Compressed ones are
decoded within their limit. Reply bodies are sent piece by piece, one write for each wake-up of the event loop, while
the client is connected. Reading or encoding a large body does not block the event loop.
"""

import asyncio
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Final, TypeVar, TypeVarTuple

from msgspec import Struct
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pippin.core.errors import ServerError
from pippin.core.events import Event, PartDelta

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LARGE: Final = 64 << 10  # bytes; reading or encoding that many takes a few milliseconds at worst
OBJECT_BYTES: Final = 256  # of an object or a list once decoded, beside what is in it
TOKEN_BYTES: Final = 200  # of a token with its log probability, once encoded
ITEM_BYTES: Final = 50  # of a list item, beside its text

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")


class LargeWork:
    """Runs large work on a thread, one job at a time.

    Two jobs at once would be no faster, and the event loop would wait for the GIL behind both.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def do(self, size: int, work: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        """Return the result of `work`, which runs on the calling thread if `size` (bytes) is at most `LARGE`."""
        if size <= LARGE:
            return work(*arguments)
        async with self._turn:
            return await asyncio.to_thread(work, *arguments)


def decoded_bytes(body: bytes) -> int:
    """The approximate size of what a body of JSON holds, once decoded. Counted in slices: other threads run between."""
    starts = range(0, len(body), MIB)
    objects = sum(body.count(sign, start, start + MIB) for start in starts for sign in (b"{", b"["))
    return len(body) + OBJECT_BYTES * objects


def drawn_bytes(events: Iterable[Event]) -> int:
    """The approximate size of these events in bytes, once encoded."""
    size = 0
    for event in events:
        if isinstance(event, PartDelta):
            size += len(event.text) + TOKEN_BYTES * len(event.tokens)
        else:
            size += bytes_in(event)
    return size


def bytes_in(value: Any) -> int:
    """The approximate size of the texts and bytes in a value."""
    match value:
        case str() | bytes():
            return len(value)
        case tuple():
            return sum(ITEM_BYTES + bytes_in(item) for item in value)
        case Struct():
            return sum(bytes_in(getattr(value, name)) for name in value.__struct_fields__)
        case _:
            return 0


MIB: Final = 1 << 20
LEAST_MEMORY: Final = 1 << 30  # bytes for the bodies of all requests
LARGEST_BODIES: Final = 4  # bodies of the largest size that may be held at once, if that is more
ENCODED_FORM: Final = "application/x-www-form-urlencoded"
SLOWEST: Final = 4 << 10
"""Bytes a second. A client that sends fewer is not slow: it means to occupy a connection."""


async def read_json_body(request: Request, limit_mb: float, idle_seconds: float) -> bytes:
    """The bytes of a JSON body, without a byte-order mark. Raises `ServerError` before more than the limit is held, or
    there is no room for what it is decoded to."""
    check_json(request.headers, request.scope["path"])
    body = await read_body(request, limit_mb, idle_seconds)
    size = decoded_bytes(body) if len(body) <= LARGE else await asyncio.to_thread(decoded_bytes, body)
    hold(request.scope, size - len(body))
    return body.removeprefix(BYTE_ORDER_MARK)


def check_json(headers: Headers, path: str = "") -> None:
    """Refuse a body that is not declared as JSON. Raises `ServerError`.

    A page of another site can make a browser send text and forms without a preflight request, but not JSON. Ollama's
    own examples send JSON declared as a form, which is curl's default; with a form, a browser would name its origin.
    """
    given = headers.get("content-type", "")
    media = given.partition(";")[0].strip().lower()
    if media == "application/json" or media.endswith("+json"):
        return
    told = "origin" in headers or "sec-fetch-site" in headers
    if not told and (not media or (media == ENCODED_FORM and path.startswith("/api/"))):
        return
    raise ServerError(
        "unsupported_media_type", "Send the body as JSON, with the header `Content-Type: application/json`."
    )


async def read_body(request: Request, limit_mb: float, idle_seconds: float) -> bytes:
    """The bytes of a body, decoded if it is compressed. Raises `ServerError` before more than the limit is held."""
    limit = int(limit_mb * MIB)
    check_length(request.headers, limit)
    coding = coding_of(request.headers)
    pieces = [piece async for piece in pieces_of(request, limit, idle_seconds)]
    body = await joined(pieces, sum(map(len, pieces)))
    if coding is not None:
        plain = await asyncio.to_thread(decoded, body, coding, limit)
        if plain is None:
            raise too_large(limit)
        # What it unpacks to counts as well: a hundred kilobytes can hold a hundred megabytes.
        hold(request.scope, len(plain))
        return plain
    return body


ZSTD: Final = "zstd"
WINDOWS: Final = {"gzip": 31, "x-gzip": 31, "deflate": 47}
"""The `wbits` of zlib for each coding that is decoded (RFC 9110, section 8.4.1). For `deflate` zlib's own header and
gzip's are both recognised."""
CODING: Final = "content-encoding"
"""The header that refusals of a coding name; `Accept-Encoding` then says what is decoded (RFC 9110, section 12.5.3)."""
ACCEPTED: Final = "gzip, deflate, zstd"
MOST_MEMBERS: Final = 64
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


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


def decoded(body: bytes, coding: str, limit: int, members: int = MOST_MEMBERS) -> bytes | None:
    """The body without its coding; None if it is larger than `limit` bytes. Raises `ServerError` for damaged data.

    Data in gzip may consist of several members (RFC 1952, section 2.2), and data in zstd of several frames."""
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
    if not reader.unused_data or coding == "deflate":
        return plain
    if members == 1:
        raise _damaged(coding, "it has too many parts")
    rest = decoded(reader.unused_data, coding, limit - len(plain), members - 1)
    return None if rest is None else plain + rest


def _damaged(coding: str, reason: object) -> ServerError:
    return ServerError("invalid_request", f"The request body can't be decoded as {coding}: {reason}.")


async def joined(pieces: list[bytes], size: int) -> bytes:
    """Join the pieces, on a thread if they are large.

    Copying many megabytes takes long, but releases the GIL.
    """
    return b"".join(pieces) if size <= LARGE else await asyncio.to_thread(b"".join, pieces)


def check_length(headers: Headers, limit: int) -> None:
    """Refuse a body whose declared length is over the limit. Raises `ServerError`."""
    announced = headers.get("content-length", "0")
    if announced.isdigit() and int(announced[:20]) > limit:
        raise too_large(limit)


async def pieces_of(request: Request, limit: int, idle_seconds: float) -> AsyncIterator[bytes]:
    """Yield the body piece by piece. Raises `ServerError` before more than `limit` bytes, and for a client that stalls
    or sends too slowly.

    Each byte adds to the time allowed for the next, which never exceeds `idle_seconds`: earlier speed does not excuse
    a body that trickles now.
    """
    stream = request.stream()
    patience, size = idle_seconds, 0
    while True:
        asked = time.monotonic()
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
        patience = min(idle_seconds, patience - (time.monotonic() - asked) + len(piece) / SLOWEST)
        if patience < 0:
            raise ServerError("timeout", f"The request body came more slowly than {SLOWEST} bytes a second.")
        size += len(piece)
        if size > limit:
            raise too_large(limit)
        yield piece


def too_large(limit: int) -> ServerError:
    return ServerError(
        "too_large", f"The request body is larger than the {limit / MIB:g} MiB that this server takes."
    )


def hold(scope: Scope, size: int) -> None:
    """Count bytes as part of a request's body until its end. Raises `ServerError` if there is no room for them."""
    held: HeldBytes | None = scope.get(HELD)
    if held is not None:
        held.need(size)


class HeldBytes:
    """The bytes that one request or connection holds of a `BodyMemory`."""

    def __init__(self, memory: "BodyMemory", caller: str) -> None:
        self._memory = memory
        self._caller = caller
        self.size = 0

    def take(self, size: int) -> bool:
        """Hold `size` more bytes; False if there is no room for them."""
        memory = self._memory
        with memory.lock:
            mine = memory.of_callers[self._caller] + size
            if size and mine > memory.limit - memory.taken - size:
                return False
            memory.taken += size
            memory.of_callers[self._caller] = mine
            self.size += size
            return True

    def need(self, size: int) -> None:
        """Hold `size` more bytes. Raises `ServerError` if there is no room for them."""
        if not self.take(size):
            raise ServerError(
                "overloaded",
                "The server holds as many bytes of your request bodies as it can; send fewer at a time, or try again "
                "in a moment.",
                retry_after=5.0,
            )

    def free(self, size: int) -> None:
        """Release `size` bytes, or all if fewer are held."""
        memory = self._memory
        with memory.lock:
            size = min(size, self.size)
            self.size -= size
            memory.taken -= size
            memory.of_callers[self._caller] -= size
            if not memory.of_callers[self._caller]:
                del memory.of_callers[self._caller]


HELD: Final = "pippin.held"
"""The key of a request's or a WebSocket connection's `HeldBytes` in its scope."""
ARRIVING: Final = "pippin.arriving"
"""The key, in the `state` of a WebSocket's scope, of its `BoundedWebSocket`."""


class BodyMemory:
    """Bounds the memory of all request bodies together, however many connections send one.

    A body counts from its first byte to the end of its request, a WebSocket message until it is answered. A caller may
    hold as much as remains free for all others: one caller alone gets half of the memory, two get a third each, and
    some always remains for the next (dynamic thresholds, Choudhury and Hahne 1998). A body beyond that is refused with
    503, and a WebSocket is closed with code 1013.
    """

    def __init__(self, app: ASGIApp, largest: int, caller_of: Callable[[Scope], str]) -> None:
        """`largest`: bytes of the largest body or upload; `caller_of`: the caller whose share a request uses."""
        self._caller_of = caller_of
        self._app = app
        self.limit = max(LEAST_MEMORY, LARGEST_BODIES * largest)
        self.taken = 0  # of all
        self.of_callers: Counter[str] = Counter()
        self.lock = threading.Lock()  # stored items are counted on threads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[HELD] = held = HeldBytes(self, self._caller_of(scope))

        async def receive_counted() -> Message:
            message = await receive()
            held.need(len(message.get("body", b"")))
            return message

        try:
            if scope["type"] == "http":
                await self._app(scope, receive_counted, send)
            else:
                scope["state"][ARRIVING].count_with(held.take)
                await self._app(scope, receive, send)
        finally:
            held.free(held.size)


class EventStream(Response):
    """Sends pieces as they come, each after `before`. `leave` is awaited at the end, whatever caused it.

    `cut` is called at the end: if true, the last chunk is not sent, so that the client sees a broken reply.
    """

    def __init__(
        self,
        pieces: AsyncIterator[bytes],
        media: str,
        *,
        before: Callable[[], Awaitable[None]] | None = None,
        leave: Callable[[], Awaitable[None]] | None = None,
        cut: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(status_code=200)
        self.init_headers({"content-type": media, "cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._pieces = pieces
        self._before = before
        self._leave = leave
        self._cut = cut

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            async for piece in self._pieces:
                if self._before is not None:
                    await self._before()
                if piece:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            if not self._cut():
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            if self._leave is not None:
                await asyncio.shield(self._leave())


class Presence:
    """Whether a client is there, for as long as nobody says that it `left`: this one is told of a run that continues
    without it."""

    def __init__(self) -> None:
        self.gone = False
        self._on_gone: Callable[[], object] | None = None

    def on_gone(self, call: Callable[[], object]) -> None:
        """Call `call` once when the client disconnects; replaces an earlier callback."""
        self._on_gone = call
        if self.gone:
            call()

    def stop(self) -> None:
        """Remove the callback."""
        self._on_gone = None

    def left(self) -> None:
        """The client has left."""
        self.gone = True
        if self._on_gone is not None:
            self._on_gone()


class WatchedPresence(Presence):
    """Watches a connection whose body was read."""

    def __init__(self, receive: Receive) -> None:
        super().__init__()
        self._watch: asyncio.Task[None] | None = asyncio.create_task(self._wait(receive))

    def stop(self) -> None:
        super().stop()
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None  # the exception that ends it has frames that refer to this object

    async def _wait(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.left()
