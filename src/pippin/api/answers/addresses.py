"""Which addresses media may be fetched from: the open internet, and what the operator opened by name.

The tables are our own because Python's differ between its versions. They follow IANA's registries of special-purpose
addresses for IPv4 and IPv6 (RFC 6890 and later entries), and add addresses that clouds use.
"""

import ipaddress
from collections.abc import Iterable
from functools import cache
from typing import Final

import psutil

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
"""Ranges that a name listed by the operator may resolve to beside the open internet."""


def is_public(address: str) -> bool:
    """Whether an address is on the open internet; an embedded IPv4 address decides."""
    ip = meant(address)
    if ip.version == 4:
        return not _within(ip, CLOSED_V4)
    return _within(ip, (OPEN_V6,)) and not _within(ip, CLOSED_V6)


def is_own(address: str) -> bool:
    """Whether an address is this machine's own now: services that listen there may rely on the machine's firewall."""
    ip = meant(address)
    return any(ip == own for own in _own_addresses())


def is_on_lan(address: str) -> bool:
    """Whether an address is in a private network; loopback and link-local addresses are not."""
    return _within(meant(address), LAN)


def meant(address: str) -> IPAddress:
    """The address without its zone, or the IPv4 address that an IPv6 address wraps."""
    ip = ipaddress.ip_address(address.split("%", 1)[0])
    if ip.version == 6 and _within(ip, MAPPED):
        return ipaddress.IPv4Address(ip.packed[-4:])
    return ip


def may_connect(host: str, address: str, listed: Iterable[str]) -> bool:
    """Whether media may be fetched from `host`, which was resolved to `address`.

    `listed`: the hosts that the operator named. A listed IP address (or `localhost`) is always allowed. A listed name
    may also resolve to a private network, such as to a camera, but never to this machine itself.
    """
    if host in listed and (host == "localhost" or _is_address(host)):
        return True
    if is_own(address):
        return False
    return is_public(address) or (host in listed and is_on_lan(address))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _own_addresses() -> Iterable[IPAddress]:
    for addresses in psutil.net_if_addrs().values():
        for each in addresses:
            if _is_address(each.address.split("%", 1)[0]):
                yield meant(each.address)


def _within(ip: IPAddress, ranges: tuple[str, ...]) -> bool:
    return any(ip in network for network in _networks(ranges))


@cache
def _networks(ranges: tuple[str, ...]) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    return tuple(map(ipaddress.ip_network, ranges))
