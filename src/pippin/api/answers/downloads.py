"""Downloads media by http and https.

A host is resolved once, every address found is checked, and the connection goes to an address that was checked.
Redirects are followed by hand, each with the same checks.
"""

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

import httpcore
import httpx
import psutil

from pippin.api.access.guards import address_of
from pippin.api.dialects.shared.fields import invalid
from pippin.api.dialects.shared.media import too_large
from pippin.api.http.body import joined
from pippin.config.options.server import ServerOptions

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
MOST_FETCHES = 8
"""Concurrent fetches, over all requests."""

ANY_PUBLIC = "*"
"""Among the hosts of `--media-host`: any host of the open internet."""

REDIRECTS = frozenset({301, 302, 303, 307, 308})


class Downloads:
    """Downloads of one server."""

    def __init__(self, options: ServerOptions) -> None:
        self._hosts = frozenset(plain_host(host) for host in options.media_hosts)
        self._may_connect = partial(may_connect_to, listed=self._hosts)
        self._most_bytes = int(options.media_max_mb * 2**20)
        self._seconds = options.media_timeout
        self._slots = asyncio.Semaphore(MOST_FETCHES)

    async def get(self, url: str, param: str) -> tuple[bytes, str | None]:
        """What lies behind an address, and the type that its host gives it. Raises `ServerError` naming `param`."""
        try:
            async with self._slots, asyncio.timeout(self._seconds):
                return await self._follow(url, param)
        except TimeoutError as error:
            raise invalid(param, f"did not arrive within {self._seconds:g} seconds.") from error
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, OSError) as error:
            raise invalid(param, "could not be fetched from its address.") from error

    async def _follow(self, url: str, param: str) -> tuple[bytes, str | None]:
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
                        raise invalid(param, f"could not be fetched: status {response.status}.")
                    if found.get(b"content-encoding", b"identity") != b"identity":
                        raise invalid(param, "came compressed, unasked.")
                    data = await self._body(response, param)
                    mime = found.get(b"content-type", b"").decode("latin-1").split(";")[0].strip()
                    return data, mime or None
        raise invalid(param, f"redirects more than {MOST_REDIRECTS} times.")

    async def _body(self, response: httpcore.Response, param: str) -> bytes:
        pieces: list[bytes] = []
        length = 0
        async for piece in response.aiter_stream():
            length += len(piece)
            if length > self._most_bytes:
                raise too_large(param, self._most_bytes)
            pieces.append(piece)
        return await joined(pieces, length)

    def _checked_address(self, url: str, param: str) -> str:
        """The address in ASCII: the host in IDNA, other non-ASCII characters percent-encoded. Raises `ServerError`."""
        try:
            parts = urlsplit(str(httpx.URL(url)))
            host, _ = parts.hostname, parts.port
            parts.geturl().encode("ascii")  # the zone of an IPv6 address is left as it is
        except (ValueError, httpx.InvalidURL) as error:
            raise invalid(param, "is no valid address.") from error
        if parts.scheme not in ("http", "https") or not host or parts.username is not None:
            raise invalid(param, "is no plain http(s) address.")
        if self._hosts and ANY_PUBLIC not in self._hosts and plain_host(host) not in self._hosts:
            raise invalid(param, "is on a host that this server doesn't fetch from.")
        return parts.geturl()


def plain_host(host: str) -> str:
    """A host in the form for comparisons: lower case, IDNA, no brackets, and no trailing dot."""
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

    async def connect_tcp(self, host: str, port: int, *given: Any, **how: Any) -> httpcore.AsyncNetworkStream:
        loop = asyncio.get_running_loop()
        try:
            answers = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (socket.gaierror, UnicodeError) as error:
            raise invalid(self._param, "is on a host that can't be found.") from error
        found = [str(answer[4][0]) for answer in answers]
        if not found or not all(self._may_connect(plain_host(host), address) for address in found):
            raise invalid(
                self._param,
                "is on a host inside a private network or on this machine, which is never fetched from "
                "unless the operator names it with --media-host.",
            )
        # A host may have an address in a network that this machine does not reach, such as IPv6.
        [*others, last] = dict.fromkeys(found)
        for address in others:
            with contextlib.suppress(httpcore.ConnectError, httpcore.ConnectTimeout):
                return await self._inner.connect_tcp(address, port, *given, **how)
        return await self._inner.connect_tcp(last, port, *given, **how)
