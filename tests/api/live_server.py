"""The real server on a real socket, over a real worker that plays a script, in a thread of its own."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pippin.api import server as api_server
from pippin.api.listening import listen
from pippin.api.server import Server
from pippin.config.options.server import ModelEntry, ServerOptions
from pippin.config.settings import Settings
from tests.service.doubles import scripted, scripted_service

MODEL = "org/scripted"


@dataclass(frozen=True)
class Live:
    """A server that runs, and how it is told to stop, as often as one likes; `wait` returns when it has."""

    address: str
    stop: Callable[[], object]
    wait: Callable[[], object]


@contextmanager
def live_server(folder: Path, script: dict[str, Any], **options: Any) -> Iterator[str]:
    """Its address."""
    with stoppable_server(folder, script, **options) as live:
        yield live.address


@contextmanager
def stoppable_server(
    folder: Path,
    script: dict[str, Any],
    *,
    drain: float = 1.0,
    host: str = "127.0.0.1",
    **options: Any,
) -> Iterator[Live]:
    """As `live_server`; what runs has `drain` seconds to end after a stop."""
    path = folder / "live.script.json"
    path.write_text(json.dumps(script))
    ready = threading.Event()
    found: list[Any] = []

    async def main() -> None:
        chosen = ServerOptions(models=(ModelEntry(path=MODEL),), port=0, drain_timeout=drain, **options)
        async with scripted_service(scripted(MODEL, path), options=chosen) as service:
            server = Server(service, Settings(server=chosen), listen(host, 0))
            found.extend((server, asyncio.get_running_loop()))
            await server.serve(ready.set)

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    with patch.object(
        api_server, "FILE", str(folder / "usage.sqlite3")
    ):  # not that of whoever runs the tests
        thread.start()
        assert ready.wait(20)
    server, loop = found
    try:
        yield Live(
            f"http://127.0.0.1:{server.port}",
            lambda: loop.call_soon_threadsafe(server.stop),
            lambda: thread.join(20),
        )
    finally:
        if not loop.is_closed():
            loop.call_soon_threadsafe(server.stop)
        thread.join(20)
        assert not thread.is_alive()
