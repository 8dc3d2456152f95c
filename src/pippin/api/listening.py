"""The addresses that the server listens on, and its start."""

import asyncio
import contextlib
import errno
import logging
import os
import socket
from collections.abc import Callable, Coroutine, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pippin.config.options.server import ServerOptions
from pippin.config.settings import Settings
from pippin.core.errors import ServerError

if TYPE_CHECKING:
    from pippin.service.service import Service

log = logging.getLogger(__name__)

BACKLOG: Final = 2048
TOLD_WITHIN: Final = 0.03  # seconds


def listen(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen on the address; `localhost` is one in IPv4 and one in IPv6, where there are both, and clients
    try either first. Raises `ServerError("conflict")`."""
    listeners: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, *_, address in found if host == "localhost" else found[:1]:
            chosen = listeners[0].getsockname()[1] if listeners else port  # another family has the same port
            listeners.append(_listener(family, (address[0], chosen, *address[2:])))
    except OSError as error:
        if not listeners:
            raise ServerError("conflict", _reason(host, port, error)) from None
        log.warning("localhost is served at %s alone: %s.", listeners[0].getsockname()[0], error.strerror)
    return listeners


def listen_in_file(path: str) -> socket.socket:
    """A socket that listens as a file, which this user alone can use. Raises `ServerError("conflict")`."""
    try:
        if Path(path).is_socket():  # of a server that was killed; connecting to one that lives works
            with contextlib.closing(socket.socket(socket.AF_UNIX)) as client, contextlib.suppress(OSError):
                client.connect(path)
                raise ServerError("conflict", f"A program listens at {path}; choose another --unix-socket.")
            Path(path).unlink()
        before = os.umask(0o177)
        try:
            return _listener(socket.AF_UNIX, path)
        finally:
            os.umask(before)
    except OSError as error:
        raise ServerError("conflict", f"Can't listen at {path}: {error.strerror or error}.") from None


def _listener(family: int, address: Any) -> socket.socket:
    both = family == socket.AF_INET6 and address[0] != "::1" and socket.has_dualstack_ipv6()
    listener = socket.create_server(address, family=family, backlog=BACKLOG, dualstack_ipv6=both)
    listener.setblocking(False)
    return listener


def _reason(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"Port {port} of {host} is in use; choose another with --port. (`pippin stop` ends a Pippin.)"
    if error.errno == errno.EACCES:
        return f"Port {port} of {host} needs more rights; choose one above 1023 with --port."
    return f"Can't listen on {host} port {port}: {error.strerror or error}."


def open_listeners(options: ServerOptions) -> list[socket.socket]:
    """Sockets that listen on the server's addresses. Raises `ServerError("conflict")`."""
    listeners = listen(options.host, options.port)
    if options.unix_socket is not None:
        listeners.append(listen_in_file(str(Path(options.unix_socket).expanduser())))
    return listeners


def run_server(
    service: "Service",
    settings: Settings,
    on_ready: Callable[[str, int], None],
    prepare: Callable[[], Coroutine[Any, Any, None]],
    listeners: Sequence[socket.socket] = (),
) -> int:
    """Listen and serve; returns the exit status. `prepare` downloads and loads the models that the operator named, also
    while the server already answers. `on_ready` is called with host and port once it does.

    Raises `ServerError` for an address that can't be had, and `ConfigError` for options that can't be used.
    """
    import uvloop

    async def serve() -> None:
        preparing = asyncio.create_task(prepare())
        try:
            # The first model's worker, which is another process, is told what to load before imports hold this one.
            await asyncio.wait({preparing}, timeout=TOLD_WITHIN)
            api = await asyncio.to_thread(import_module, "pippin.api.server")
            server = api.Server(service, settings, listeners)
            await server.run(lambda: on_ready(settings.server.host, server.port))
        finally:
            preparing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await preparing
            await service.close(0.0)

    listeners = listeners or open_listeners(settings.server)
    with contextlib.ExitStack() as held:
        if settings.server.unix_socket is not None:
            held.callback(Path(settings.server.unix_socket).expanduser().unlink, missing_ok=True)
        for listener in listeners:
            held.enter_context(contextlib.closing(listener))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve())
    return 0
