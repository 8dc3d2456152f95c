"""A whole server on a socket over real workers with a scripted model, in a thread of its own."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from pippin.api.app import create_app, open_api
from pippin.config.options.server import ModelEntry, ServerOptions
from pippin.config.settings import Settings
from tests.service.doubles import scripted, scripted_service, write_script


@contextmanager
def scripted_server(folder: Path, *rules: dict[str, Any], **script: Any) -> Iterator[str]:
    """The address of a server whose one model, `scripted`, answers by these rules."""
    model = scripted("scripted", write_script(folder, *rules, **script))
    options = ServerOptions(models=(ModelEntry(path="scripted"),))
    listener = socket.create_server(("127.0.0.1", 0))
    servers: list[uvicorn.Server] = []
    ready = threading.Event()

    async def serve() -> None:
        async with scripted_service(model, options=options) as service:
            app = create_app(open_api(service, Settings(server=options)))
            config = uvicorn.Config(app, lifespan="off", log_config=None, timeout_graceful_shutdown=2)
            servers.append(uvicorn.Server(config))
            ready.set()
            await servers[0].serve([listener])

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    try:
        assert ready.wait(20)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        servers[0].should_exit = True
        thread.join(20)
        listener.close()
