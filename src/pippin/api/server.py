"""Runs the server: listens, answers signals, drains, and ends every worker."""

import asyncio
import contextlib
import errno
import gc
import logging
import resource
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final

import uvicorn
import uvloop

from pippin.api.access.guards import OPEN_PATHS
from pippin.api.app import create_app
from pippin.api.batches.batches import Batches
from pippin.api.http.body import MIB
from pippin.api.http.protocol import InTurn, Turns, accept_queue, connections
from pippin.api.http.unread import UnreadAnswers
from pippin.api.http.web_socket import web_sockets
from pippin.api.live_settings import LiveSettings
from pippin.config.mcp_file import McpSettings, load_mcp_file
from pippin.config.options.server import ServerOptions
from pippin.config.settings import Settings
from pippin.mcp import ToolServers
from pippin.service import Service

MOST: Final = 65_536


def allow_many() -> None:
    """Raise the limit of open files: every connection takes one, and macOS starts a process with 256."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # macOS has a further limit, which it doesn't tell
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


log = logging.getLogger(__name__)

BACKLOG: Final = 2048
PING_SECONDS: Final = 30.0  # between signs of life of a WebSocket
KEEP_CONNECTION: Final = 75  # idle seconds
SWITCH: Final = 0.001  # seconds that the event loop waits for a thread that computes, in each of its turns

Preparation = Callable[[], Coroutine[Any, Any, None]]
"""Fetches and loads the models that the operator named, while the server answers already."""


async def nothing_to_prepare() -> None:
    """The preparation of a server whose models load when requests name them."""


class AddressError(Exception):
    """The address can't be listened on. The message is one clear line."""


def open_tool_servers(options: ServerOptions) -> ToolServers:
    """The tool servers of the operator's file, not connected yet. Raises `ConfigError`."""
    return ToolServers(McpSettings() if options.mcp_config is None else load_mcp_file(options.mcp_config))


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens on the address. Raises `AddressError`."""
    try:
        [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise AddressError(_reason(host, port, error)) from None
    listener.setblocking(False)
    return listener


def _reason(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"Port {port} of {host} is in use; choose another with --port. (`pippin stop` ends a Pippin.)"
    if error.errno == errno.EACCES:
        return f"Port {port} of {host} needs more rights; choose one above 1023 with --port."
    return f"Can't listen on {host} port {port}: {error.strerror or error}."


class Server:
    """One listening address over one service. `run` returns when the server has stopped."""

    def __init__(self, service: Service, settings: Settings, listener: socket.socket) -> None:
        options = settings.server
        self._service = service
        self._drain = options.drain_timeout
        self._listener = listener
        self._stops = 0
        self._tool_servers = open_tool_servers(options)
        self._batches = Batches(options)
        self._live = LiveSettings(settings, service)
        self._reloading: asyncio.Task[None] | None = None
        app = create_app(service, settings, self._live, self._tool_servers, self._batches)
        unread = UnreadAnswers()
        self._uvicorn = _Uvicorn(
            uvicorn.Config(
                InTurn(app, Turns(accept_queue(listener)), OPEN_PATHS),
                http=connections(unread),
                ws=web_sockets(unread),
                ws_per_message_deflate=False,
                ws_max_size=int(options.max_body_mb * MIB),
                ws_ping_interval=PING_SECONDS,
                ws_ping_timeout=PING_SECONDS,
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                date_header=True,
                timeout_keep_alive=KEEP_CONNECTION,
                timeout_graceful_shutdown=max(1, round(options.drain_timeout)),
            )
        )

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

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
        serving = asyncio.create_task(self._uvicorn.serve([self._listener]))
        self._tool_servers.start()
        self._batches.runner.start()
        on_ready()
        try:
            await serving
        finally:
            preparing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await preparing
            await self._tool_servers.close()
            await self._batches.runner.close()
            await self._service.close(0.0)

    def stop(self) -> None:
        """Stop: the first call lets running requests finish within the drain's time, the second one ends them now."""
        self._stops += 1
        if self._stops == 1:
            if self._service.active:
                log.info("Stopping: requests that run have %g seconds; once more stops now.", self._drain)
            else:
                log.info("Stopping.")
            self._uvicorn.should_exit = True
        else:
            self._uvicorn.force_exit = True

    def reload(self) -> None:
        """Read the settings again."""
        if self._reloading is None or self._reloading.done():
            self._reloading = asyncio.create_task(self._live.reload())

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        actions = {signal.SIGINT: self.stop, signal.SIGTERM: self.stop, signal.SIGHUP: self.reload}
        for number, action in actions.items():
            loop.add_signal_handler(number, action)
        try:
            yield
        finally:
            for number in actions:
                loop.remove_signal_handler(number)


class _Uvicorn(uvicorn.Server):
    """A uvicorn server that leaves signals to `Server`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run_server(
    service: Service,
    settings: Settings,
    on_ready: Callable[[str, int], None],
    prepare: Preparation,
) -> int:
    """Listen and serve; the process's exit status. `on_ready` is told host and port once they answer.

    Raises `AddressError` before anything is started, and `ServerError` for options that can't be used.
    """
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # of what clients do wrong we tell ourselves
    allow_many()
    host = settings.server.host
    listener = listen(host, settings.server.port)
    with contextlib.closing(listener):
        server = Server(service, settings, listener)

        def ready() -> None:
            gc.freeze()  # a full collection takes 40 ms less without what is here to stay
            gc.set_threshold(50_000, 20, 50)  # many bodies and few cycles: looking seldom is enough
            sys.setswitchinterval(SWITCH)
            on_ready(host, server.port)

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(server.run(ready, prepare))
    return 0
