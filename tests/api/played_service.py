"""A service without workers, for tests of the wire: each of its models plays fixed events.

`served` puts a whole server over it, on a socket, in a thread of its own.
"""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from pippin.api.app import create_app, open_api
from pippin.config.options.server import ServerOptions
from pippin.config.settings import Settings
from pippin.core.conversation import Text
from pippin.core.errors import ErrorReport, ServerError
from pippin.core.events import Accepted, Counted, Event, Failed, Finished
from pippin.core.models import ModelInfo, ModelKind
from pippin.core.requests import GenerationRequest
from pippin.core.tasks import CountTokens, Generate, Task
from tests.api.fakes import FakePool
from tests.api.golden_events import part, usage

SLOW = "slow"
"""This model says one word, and goes on when `release` is called."""


class PlayedRun:
    """Gives what is put into it, and nothing after a `Failed` or `Finished`."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.accepted: Accepted | None = None
        self.closed = False
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._ended = False

    def put(self, event: Event) -> None:
        self._events.put_nowait(event)

    def hold_back(self) -> None:
        pass

    async def take(self) -> list[Event]:
        if self._ended:
            return []
        events = [await self._events.get()]
        while not self._events.empty():
            events.append(self._events.get_nowait())
        self._ended = isinstance(events[-1], Failed | Finished | Counted)
        return events

    def fail(self, report: ErrorReport) -> None:
        self.put(Failed(report))

    async def aclose(self) -> None:
        self.closed = True


class PlayedService:
    """Models are named by what they play; `echo` says how many words its prompt has."""

    def __init__(self, plays: dict[str, list[Event]]) -> None:
        self.plays = plays
        self.pool = FakePool()
        self.names = self
        self.requests: list[GenerationRequest] = []
        self.runs: list[PlayedRun] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: list[PlayedRun] = []

    def model(self, name: str) -> ModelInfo:
        if name == "default":
            name = "echo"
        if name.startswith("claude-"):
            name = "echo"
        if name not in (*self.plays, "echo", SLOW):
            raise ServerError("model_not_found", f"The model {name!r} does not exist.", "model")
        return ModelInfo(id=name, kind="language", created=1)

    async def find(self, name: str, kind: ModelKind | None = None) -> ModelInfo:
        return self.model(name)

    async def start(self, task: Task, *, model: str, id: str, account: str = "") -> PlayedRun:
        name = self.model(model).id
        run = PlayedRun(id)
        match task:
            case CountTokens(request):
                run.put(Counted(words_of(request)))
            case Generate(request):
                self.requests.append(request)
                events = self._events(name, request)
                if isinstance(events[0], Failed):
                    raise ServerError.of(events[0].error)
                run.accepted = Accepted(prompt_tokens=words_of(request))
                for event in events:
                    if not isinstance(event, Accepted):
                        run.put(event)
                if name == SLOW:
                    self._loop = asyncio.get_running_loop()
                    self._waiting.append(run)
            case _:
                raise AssertionError(task)
        self.runs.append(run)
        return run

    def release(self) -> None:
        """Let the slow runs finish; from another thread."""
        assert self._loop is not None
        for run in self._waiting:
            for event in (part("text", "x")[2], Finished(0, "stop", usage=usage(1))):
                self._loop.call_soon_threadsafe(run.put, event)

    def _events(self, name: str, request: GenerationRequest) -> list[Event]:
        if name == SLOW:
            return part("text", "Wait.")[:2]
        if name == "echo":
            return [*part("text", str(words_of(request)), " words"), Finished(0, "stop", usage=usage(2))]
        return self.plays[name]


def words_of(request: GenerationRequest) -> int:
    texts = [p.text for message in request.messages or () for p in message.parts if isinstance(p, Text)]
    return sum(len(text.split()) for text in texts) + 10 * len(request.tools)


class QuietServer(uvicorn.Server):
    def install_signal_handlers(self) -> None:
        pass


@contextmanager
def served(service: Any, options: ServerOptions) -> Iterator[str]:
    """The address of a server that runs until the block ends."""
    listener = socket.create_server(("127.0.0.1", 0))
    app = create_app(open_api(service, Settings(server=options)))
    config = uvicorn.Config(
        app, lifespan="off", log_config=None, access_log=False, timeout_graceful_shutdown=2
    )
    server = QuietServer(config)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()
