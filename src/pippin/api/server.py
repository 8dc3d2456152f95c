"""Runs the server: listens, handles signals, drains, and ends every worker."""

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import uvloop

from pippin.api.access.guards import OPEN_PATHS
from pippin.api.app import create_app
from pippin.api.batches.batches import Batches
from pippin.api.http.protocol import InTurn, Turns, UnreadAnswers, accept_queue, connections
from pippin.api.http.serving import Uvicorn, allow_many, settle_down
from pippin.api.live_settings import LiveSettings, Reloads
from pippin.api.telemetry.ledger import FILE, Ledger
from pippin.config import environment
from pippin.config.mcp_file import McpSettings, load_mcp_file
from pippin.config.options.server import ServerOptions
from pippin.config.settings import Settings
from pippin.mcp import ToolServers
from pippin.service import Service

log = logging.getLogger(__name__)

BACKLOG: Final = 2048

Preparation = Callable[[], Coroutine[Any, Any, None]]
"""Downloads and loads the models that the operator named, while the server already answers."""


async def nothing_to_prepare() -> None:
    """The preparation of a server whose models load when requests name them."""


class AddressError(Exception):
    """The server can't listen on the address. The message is one clear line."""


def open_tool_servers(options: ServerOptions) -> ToolServers:
    """The tool servers of the operator's file, not connected yet. Raises `ConfigError`."""
    return ToolServers(McpSettings() if options.mcp_config is None else load_mcp_file(options.mcp_config))


def listen(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen on the address; `localhost` is one in IPv4 and one in IPv6, where there are both, and clients
    try either first. Raises `AddressError`."""
    listeners: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, *_, address in found if host == "localhost" else found[:1]:
            chosen = listeners[0].getsockname()[1] if listeners else port  # another family has the same port
            listeners.append(_listener(family, (address[0], chosen, *address[2:])))
    except OSError as error:
        if not listeners:
            raise AddressError(_reason(host, port, error)) from None
        log.warning("localhost is served at %s alone: %s.", listeners[0].getsockname()[0], error.strerror)
    return listeners


def listen_in_file(path: str) -> socket.socket:
    """A socket that listens as a file, which this user alone can use. Raises `AddressError`."""
    try:
        if Path(path).is_socket():  # of a server that was killed; connecting to one that lives works
            with contextlib.closing(socket.socket(socket.AF_UNIX)) as client, contextlib.suppress(OSError):
                client.connect(path)
                raise AddressError(f"Another program listens at {path}; choose another --unix-socket.")
            Path(path).unlink()
        before = os.umask(0o177)
        try:
            return _listener(socket.AF_UNIX, path)
        finally:
            os.umask(before)
    except OSError as error:
        raise AddressError(f"Can't listen at {path}: {error.strerror or error}.") from None


def _listener(family: int, address: Any) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(address[0] == "::1"))
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def _reason(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"Port {port} of {host} is in use; choose another with --port. (`pippin stop` ends a Pippin.)"
    if error.errno == errno.EACCES:
        return f"Port {port} of {host} needs more rights; choose one above 1023 with --port."
    return f"Can't listen on {host} port {port}: {error.strerror or error}."


class Server:
    """Listening addresses over one service. `run` returns when the server has stopped."""

    def __init__(self, service: Service, settings: Settings, listeners: Sequence[socket.socket]) -> None:
        options = settings.server
        self._service = service
        self._drain = options.drain_timeout
        self._listeners = listeners
        self._stops = 0
        self._tool_servers = open_tool_servers(options)
        self._batches = Batches(options)
        self._live = LiveSettings(settings, service)
        self._reloads = Reloads(self._live.reload)
        self._ledger = Ledger()
        app = create_app(service, settings, self._live, self._tool_servers, self._batches, self._ledger)
        unread = UnreadAnswers()
        kind = connections(unread)
        app = InTurn(app, Turns(accept_queue(listeners)), OPEN_PATHS)
        self._uvicorn = Uvicorn(app, options, unread, kind, service.end_all, self._batches.others)

    @property
    def port(self) -> int:
        return int(self._listeners[0].getsockname()[1])

    async def run(
        self, on_ready: Callable[[], None] = lambda: None, prepare: Preparation = nothing_to_prepare
    ) -> None:
        """Serve until a signal says stop."""
        with self._signals():
            await self.serve(on_ready, prepare)

    async def serve(
        self, on_ready: Callable[[], None] = lambda: None, prepare: Preparation = nothing_to_prepare
    ) -> None:
        """Serve until `stop` is called."""
        preparing = asyncio.create_task(prepare())
        keeping = asyncio.create_task(self._ledger.keep(environment.home() / FILE))
        serving = asyncio.create_task(self._uvicorn.serve(list(self._listeners)))
        self._tool_servers.start()
        self._batches.start()
        on_ready()
        try:
            await serving
        finally:
            for task in (preparing, keeping):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            await self._tool_servers.close()
            await self._batches.runner.close()
            await self._service.close(0.0)

    def stop(self) -> None:
        """Stop: the first call lets running requests finish within the drain timeout, the second one ends them now."""
        self._stops += 1
        drain = self._drain if self._stops == 1 else 0.0
        self._batches.runner.rest()
        self._uvicorn.leave(drain)
        if self._stops == 1:
            if self._service.active:
                log.info("Stopping: requests that run have %g seconds; once more stops now.", self._drain)
            else:
                log.info("Stopping.")

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        actions = {signal.SIGINT: self.stop, signal.SIGTERM: self.stop, signal.SIGHUP: self._reloads.ask}
        for number, action in actions.items():
            loop.add_signal_handler(number, action)
        try:
            yield
        finally:
            for number in actions:
                loop.remove_signal_handler(number)


def open_listeners(options: ServerOptions) -> list[socket.socket]:
    """Sockets that listen on the server's addresses. Raises `AddressError`."""
    listeners = listen(options.host, options.port)
    if options.unix_socket is not None:
        listeners.append(listen_in_file(str(Path(options.unix_socket).expanduser())))
    return listeners


def run_server(
    service: Service,
    settings: Settings,
    on_ready: Callable[[str, int], None],
    prepare: Preparation,
    listeners: Sequence[socket.socket] = (),
) -> int:
    """Listen and serve; returns the exit status. `on_ready` is called with host and port once the server listens.

    Raises `AddressError` before anything is started, and `ServerError` for options that can't be used.
    """
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # Pippin logs all errors itself
    allow_many()
    listeners = listeners or open_listeners(settings.server)
    with contextlib.ExitStack() as held:
        if settings.server.unix_socket is not None:
            held.callback(Path(settings.server.unix_socket).expanduser().unlink, missing_ok=True)
        for listener in listeners:
            held.enter_context(contextlib.closing(listener))
        server = Server(service, settings, listeners)

        def ready() -> None:
            settle_down()
            on_ready(settings.server.host, server.port)

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(server.run(ready, prepare))
    return 0
