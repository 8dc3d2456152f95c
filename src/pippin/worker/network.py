"""Keeps a worker of an offline server from opening connections, whatever a library attempts."""

import ipaddress
import sys
from typing import Any, Final

from pippin.config.worker_environment import keep_off_the_hub
from pippin.core.models import WorkerSpec

CONNECTING: Final = frozenset({"socket.connect", "socket.sendto", "socket.getaddrinfo"})


def forbid_network(spec: WorkerSpec) -> None:
    """Forbid connections to other machines for the life of this process if the server is offline.

    Hugging Face libraries are put into offline mode first, so that they use their cache and name what is missing. A
    connection attempted all the same raises `OSError`. A rank must reach the machines of its group, so it gets the
    offline mode only.
    """
    if not spec.offline:
        return
    keep_off_the_hub()
    if spec.rank is not None:
        return

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in CONNECTING and not _is_here(_host_of(event, arguments)):
            raise OSError("--offline forbids to use the network.")

    sys.addaudithook(hook)


def _host_of(event: str, arguments: tuple[Any, ...]) -> object:
    """The destination host; None for local sockets, whose addresses are paths."""
    if event == "socket.getaddrinfo":
        return arguments[0]
    address = arguments[1]
    return address[0] if isinstance(address, tuple) else None


def _is_here(host: object) -> bool:
    name = host.decode("ascii", "replace") if isinstance(host, bytes) else host
    if name is None or name == "localhost":
        return True
    try:
        return ipaddress.ip_address(str(name)).is_loopback
    except ValueError:
        return False
