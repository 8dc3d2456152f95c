"""Runs the server: handles signals, and drains."""

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Final

from pippin.api.access.guards import OPEN_PATHS
from pippin.api.app import create_app, open_api
from pippin.api.http.protocol import InTurn, accept_queue
from pippin.api.http.serving import Uvicorn
from pippin.api.telemetry.ledger import FILE
from pippin.config import environment
from pippin.config.mcp_file import load_mcp_file
from pippin.config.settings import Settings
from pippin.service.service import Service

log = logging.getLogger(__name__)

SWITCH: Final = 0.001  # seconds that the event loop waits for the GIL while another thread computes


class Server:
    """Listening addresses over one service. `run` returns when the server has stopped."""

    def __init__(self, service: Service, settings: Settings, listeners: Sequence[socket.socket]) -> None:
        options = settings.server
        self._service = service
        self._drain = options.drain_timeout
        self._listeners = listeners
        self._stops = 0
        mcp = None if options.mcp_config is None else load_mcp_file(options.mcp_config)
        self._api = api = open_api(service, settings, mcp)
        app = InTurn(create_app(api), accept_queue(listeners), OPEN_PATHS)
        self._uvicorn = Uvicorn(app, options, service.end_all, lambda: api.handler.answers.live)

    @property
    def port(self) -> int:
        return int(self._listeners[0].getsockname()[1])

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Serve until a signal says stop."""
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # Pippin logs all errors itself
        # Once everything is loaded.
        gc.freeze()  # a full collection takes 40 ms less without the permanent objects
        sys.setswitchinterval(SWITCH)
        loop, reload = asyncio.get_running_loop(), self._api.settings.ask_for_reload
        actions = {signal.SIGINT: self.stop, signal.SIGTERM: self.stop, signal.SIGHUP: reload}
        for number, action in actions.items():
            loop.add_signal_handler(number, action)
        try:
            await self.serve(on_ready)
        finally:
            for number in actions:
                loop.remove_signal_handler(number)

    async def serve(self, on_ready: Callable[[], None]) -> None:
        """Serve until `stop` is called."""
        tool_servers, batches = self._api.handler.tools.servers, self._api.batches
        keeping = asyncio.create_task(self._api.ledger.keep(environment.home() / FILE))
        serving = asyncio.create_task(self._uvicorn.serve(list(self._listeners)))
        tool_servers.start()
        batches.start()
        on_ready()
        try:
            await serving
        finally:
            keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeping
            await tool_servers.close()
            await batches.runner.close()

    def stop(self) -> None:
        """Stop: the first call lets running requests finish within the drain timeout, the second one ends them now."""
        self._stops += 1
        drain = self._drain if self._stops == 1 else 0.0
        self._api.batches.runner.rest()
        self._uvicorn.leave(drain)
        if self._stops == 1:
            if self._service.active:
                log.info("Stopping: requests that run have %g seconds; once more stops now.", self._drain)
            else:
                log.info("Stopping.")
