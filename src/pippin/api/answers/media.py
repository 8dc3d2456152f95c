"""Fetches media that requests only refer to: one module, one policy, for every dialect and kind.

A host is resolved once, every address found is checked, and the connection goes to an address that was
checked. Redirects are followed by hand, each with the same checks. Media are not decoded here.
"""

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

import httpcore
import msgspec
import psutil

from pippin.api.access.guards import address_of
from pippin.api.dialects.shared.media import MAX_URL, document_of, placed, source_of_url
from pippin.api.http.body import joined
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

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

CLOSED_V4: Final = (
    "0.0.0.0/8",  # this network
    "10.0.0.0/8",  # private
    "100.64.0.0/10",  # carriers' NAT; Alibaba's metadata
    "127.0.0.0/8",  # loopback
    "168.63.129.16/32",  # Azure's WireServer, on an address that is otherwise public
    "169.254.0.0/16",  # link-local; metadata of most clouds
    "172.16.0.0/12",  # private
    "192.0.0.0/24",  # protocol assignments; Oracle's metadata
    "192.0.2.0/24",  # documentation
    "192.31.196.0/24",  # AS112
    "192.52.193.0/24",  # AMT
    "192.88.99.0/24",  # 6to4 relays
    "192.168.0.0/16",  # private
    "192.175.48.0/24",  # AS112
    "198.18.0.0/15",  # benchmarks
    "198.51.100.0/24",  # documentation
    "203.0.113.0/24",  # documentation
    "224.0.0.0/4",  # multicast
    "240.0.0.0/4",  # reserved, and broadcast
)
OPEN_V6: Final = "2000::/3"
"""The only range of IPv6 that is assigned to the open internet; `::/96`, `fc00::/7`, `fe80::/10`, `fec0::/10`,
`ff00::/8`, `64:ff9b:1::/48` and all others lie outside."""
CLOSED_V6: Final = (
    "2001::/23",  # protocol assignments: Teredo, benchmarks, ORCHID
    "2001:db8::/32",  # documentation
    "2002::/16",  # 6to4, which hides an IPv4 address
    "2620:4f:8000::/48",  # AS112
    "3fff::/20",  # documentation
)
MAPPED: Final = ("::ffff:0:0/96", "64:ff9b::/96")
"""Ranges whose addresses embed an IPv4 address in their last four bytes: IPv4-mapped, and NAT64."""
LAN: Final = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
"""Ranges of private networks, without loopback and link-local addresses, that a name listed by the operator may resolve
to beside the open internet."""


def is_public(address: str) -> bool:
    """Whether an address is on the open internet; an embedded IPv4 address decides."""
    ip = meant(address)
    if ip.version == 4:
        return not _within(ip, CLOSED_V4)
    return _within(ip, (OPEN_V6,)) and not _within(ip, CLOSED_V6)


def is_own(address: str) -> bool:
    """Whether an address is this machine's own now: services that listen there may rely on the machine's firewall."""
    bound = (each.address for found in psutil.net_if_addrs().values() for each in found)
    return meant(address) in {meant(each) for each in bound if address_of(each.split("%", 1)[0])}


def meant(address: str) -> IPAddress:
    """The address without its zone, or the IPv4 address that an IPv6 address wraps."""
    ip = ipaddress.ip_address(address.split("%", 1)[0])
    if ip.version == 6 and _within(ip, MAPPED):
        return ipaddress.IPv4Address(ip.packed[-4:])
    return ip


def may_connect_to(host: str, address: str, listed: Iterable[str]) -> bool:
    """Whether media may be fetched from `host`, which was resolved to `address`.

    `listed`: the hosts that the operator named. A listed IP address (or `localhost`) is always allowed. A listed name
    may also resolve to a private network, such as to a camera, but never to this machine itself.
    """
    if host in listed and (host == "localhost" or address_of(host) is not None):
        return True
    if is_own(address):
        return False
    return is_public(address) or (host in listed and _within(meant(address), LAN))


def _within(ip: IPAddress, ranges: tuple[str, ...]) -> bool:
    return any(ip in network for network in _networks(ranges))


@cache
def _networks(ranges: tuple[str, ...]) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    return tuple(map(ipaddress.ip_network, ranges))


MOST_REDIRECTS = 3
MOST_ITEMS = 64
"""Images, audio and video clips in one request."""

LEFT_OUT_AT_ONCE = 32
"""Media are left out of a long conversation in steps of this many."""

MOST_FETCHES = 8
"""Concurrent fetches, over all requests."""

ANY_PUBLIC = "*"
"""Among the hosts of `--media-host`: any host of the open internet."""

REDIRECTS = frozenset({301, 302, 303, 307, 308})


class MediaResolver:
    """Turns every `Url` of a request into `Inline` bytes, or refuses it by name."""

    def __init__(self, options: ServerOptions) -> None:
        self._forbidden = "offline" if options.offline else "" if options.media_fetch else "no-media-fetch"
        self._hosts = frozenset(plain_host(host) for host in options.media_hosts)
        self._may_connect = partial(may_connect_to, listed=self._hosts)
        self._root = Path(options.media_path).resolve() if options.media_path else None
        self._most_bytes = int(options.media_max_mb * 2**20)
        self._seconds = options.media_timeout
        self._slots = asyncio.Semaphore(MOST_FETCHES)

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
                    raise _refusal(where, "was not fetched: others took too long.")
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
                    raise self._too_large(param)
                source = await asyncio.to_thread(source_of_url, url, param)
                assert isinstance(source, Inline)
                return self._checked(source.data, source.mime, param)
            case "http" | "https":
                return await self._download(url, param)
            case "file" | "":
                return await asyncio.to_thread(self._file, url, param)
            case _:
                raise _refusal(param, f"has an address of kind {scheme!r}; use data:, https: or http:.")

    def _file(self, url: str, param: str) -> Inline:
        """A file inside the media folder. A path is checked after all its links are resolved."""
        if self._root is None:
            raise _refusal(
                param, "is a file path; send the bytes as a data: URI, or start the server with --media-path."
            )
        refusal = _refusal(param, "names no file in the server's media folder.")
        try:
            path = (self._root / url.removeprefix("file://")).resolve(strict=True)
            if not path.is_relative_to(self._root) or not path.is_file():
                raise refusal
            if path.stat().st_size > self._most_bytes:
                raise self._too_large(param)
            data = path.read_bytes()
        except (OSError, ValueError, RuntimeError) as error:
            raise refusal from error
        return self._checked(data, None, param)

    async def _download(self, url: str, param: str) -> Inline:
        if self._forbidden:
            reason = (
                f"is an address to fetch, which `--{self._forbidden}` forbids; send the bytes as a data: URI."
            )
            raise _refusal(param, reason)
        try:
            async with self._slots, asyncio.timeout(self._seconds):
                return await self._follow(url, param)
        except TimeoutError as error:
            raise _refusal(param, f"did not arrive within {self._seconds:g} seconds.") from error
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, OSError) as error:
            raise _refusal(param, "could not be fetched from its address.") from error

    async def _follow(self, url: str, param: str) -> Inline:
        async with httpcore.AsyncConnectionPool(
            network_backend=_CheckedNetwork(param, self._may_connect)
        ) as pool:
            for _ in range(MOST_REDIRECTS + 1):
                url = self._checked_address(url, param)
                headers = [("Accept-Encoding", "identity"), ("User-Agent", "pippin")]
                async with pool.stream("GET", url, headers=headers) as response:
                    found = {name.lower(): value for name, value in response.headers}
                    location = found.get(b"location")
                    if response.status in REDIRECTS and location is not None:
                        url = urljoin(url, location.decode(errors="replace"))
                        continue
                    if response.status != 200:
                        raise _refusal(param, f"could not be fetched: status {response.status}.")
                    if found.get(b"content-encoding", b"identity") != b"identity":
                        raise _refusal(param, "came compressed, unasked.")
                    data = await self._body(response, param)
                    mime = found.get(b"content-type", b"").decode("latin-1").split(";")[0].strip()
                    return self._checked(data, mime or None, param)
        raise _refusal(param, f"redirects more than {MOST_REDIRECTS} times.")

    async def _body(self, response: httpcore.Response, param: str) -> bytes:
        pieces: list[bytes] = []
        length = 0
        async for piece in response.aiter_stream():
            length += len(piece)
            if length > self._most_bytes:
                raise self._too_large(param)
            pieces.append(piece)
        return await joined(pieces, length)

    def _checked_address(self, url: str, param: str) -> str:
        """The address in ASCII: the host in IDNA, other non-ASCII characters percent-encoded. Raises `ServerError`."""
        import httpx  # slow to import, and only needed here

        try:
            parts = urlsplit(str(httpx.URL(url)))
            host, _ = parts.hostname, parts.port
            parts.geturl().encode("ascii")  # the zone of an IPv6 address is left as it is
        except (ValueError, httpx.InvalidURL) as error:
            raise _refusal(param, "is no valid address.") from error
        if parts.scheme not in ("http", "https") or not host or parts.username is not None:
            raise _refusal(param, "is no plain http(s) address.")
        if self._hosts and ANY_PUBLIC not in self._hosts and plain_host(host) not in self._hosts:
            raise _refusal(param, "is on a host that this server doesn't fetch from.")
        return parts.geturl()

    def _checked(self, data: bytes, mime: str | None, param: str) -> Inline:
        if not data:
            raise _refusal(param, "is empty.")
        if len(data) > self._most_bytes:
            raise self._too_large(param)
        return Inline(data, mime)

    def _too_large(self, param: str) -> ServerError:
        return ServerError(
            "too_large",
            f"{param} is larger than {self._most_bytes / 2**20:g} MiB; send a smaller one.",
            param,
        )


def _refusal(param: str, sentence: str) -> ServerError:
    """The error for a medium that can't be used. The sentence continues after the field's name."""
    return ServerError("invalid_request", f"{param} {sentence}", param)


def _check_count(parts: Iterable[Part], param: str) -> None:
    """Raises `ServerError` naming `param` where a request has too many media."""
    if (count := sum(1 for _ in media_of(parts))) > MOST_ITEMS:
        raise _refusal(param, f"hold {count} media parts; send at most {MOST_ITEMS}.")


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


def plain_host(host: str) -> str:
    """A host in the form for comparisons: lower case, IDNA, no brackets, and no trailing dot."""
    import httpx

    host = host.strip().strip("[]").removesuffix(".").lower()
    try:
        return httpx.URL(scheme="http", host=host).raw_host.decode("ascii")
    except (ValueError, httpx.InvalidURL):
        return host


class _CheckedNetwork(httpcore.AsyncNetworkBackend):
    """Connects to an address only after checking it; TLS still verifies the host's own name."""

    def __init__(self, param: str, may_connect: Callable[[str, str], bool]) -> None:
        self._param = param
        self._may_connect = may_connect
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        loop = asyncio.get_running_loop()
        try:
            answers = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (socket.gaierror, UnicodeError) as error:
            raise _refusal(self._param, "is on a host that can't be found.") from error
        found = [str(answer[4][0]) for answer in answers]
        if not found or not all(self._may_connect(plain_host(host), address) for address in found):
            raise _refusal(
                self._param,
                "is on a host inside a private network or on this machine, which is never fetched from "
                "unless the operator names it with --media-host.",
            )
        # A host may have an address in a network that this machine does not reach, such as IPv6.
        [*others, last] = dict.fromkeys(found)
        for address in others:
            with contextlib.suppress(httpcore.ConnectError, httpcore.ConnectTimeout):
                return await self._inner.connect_tcp(address, port, timeout, local_address, socket_options)
        return await self._inner.connect_tcp(last, port, timeout, local_address, socket_options)
