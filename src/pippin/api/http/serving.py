"""uvicorn, set up as every process of the server runs it."""

import asyncio
import contextlib
import gc
import resource
import socket
import sys
from collections.abc import Iterator
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp

from pippin.api.http.body import MIB
from pippin.api.http.protocol import BoundedConnection
from pippin.api.http.unread import UnreadAnswers
from pippin.api.http.web_socket import web_sockets
from pippin.config.options.server import ServerOptions

MOST: Final = 65_536
PING_SECONDS: Final = 30.0  # between signs of life of a WebSocket
KEEP_CONNECTION: Final = 75  # idle seconds
SWITCH: Final = 0.001  # seconds that the event loop waits for a thread that computes, in each of its turns


class Uvicorn(uvicorn.Server):
    """A uvicorn server that leaves signals to others, and takes connections that somebody else accepted."""

    def __init__(
        self,
        app: ASGIApp,
        options: ServerOptions,
        unread: UnreadAnswers,
        connections: type[BoundedConnection],
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=connections,
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

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def adopt(self, connection: socket.socket, early: bytes) -> bool:
        """Serve a connection from which `early` was read; False where it is closed already."""
        protocol: Any = self.config.http_protocol_class
        made = protocol(
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
            _loop=asyncio.get_running_loop(),
            early=early,
        )
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: made, connection)
        except OSError:
            connection.close()
            return False
        return True


def allow_many() -> None:
    """Raise the limit of open files: every connection takes one, and macOS starts a process with 256."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # macOS has a further limit, which it doesn't tell
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def settle_down() -> None:
    """Tell the interpreter that all is loaded, and what matters from here on."""
    gc.freeze()  # a full collection takes 40 ms less without what is here to stay
    gc.set_threshold(50_000, 20, 50)  # many bodies and few cycles: looking seldom is enough
    sys.setswitchinterval(SWITCH)
