"""A service that plays events in this process, and ways to talk to the application over it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import httpx
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import ASGIApp, Message

from pippin.api.app import create_app, open_api
from pippin.config.options.server import ServerOptions
from pippin.config.settings import Settings
from pippin.core.errors import ErrorReport, ServerError
from pippin.core.events import (
    Accepted,
    Counted,
    Detokenized,
    Event,
    Failed,
    Finished,
    PartEnded,
    Rendered,
    Tokenized,
    Transcribed,
)
from pippin.core.models import EngineStats, HubModel, ModelInfo, ModelKind, ModelState, Suggestion
from pippin.core.tasks import CountTokens, Detokenize, Generate, RenderTemplate, Task, Tokenize, Transcribe
from pippin.runtime.workers.link import Mailbox
from pippin.service.service import Service
from tests.api.golden_events import SEQUENCES

MODEL = ModelInfo(id="org/model-a", kind="language", context_window=4096, created=1_700_000_000)
BASE = "http://127.0.0.1:8000"


@dataclass
class FakeRun:
    id: str
    task: Task
    accepted: Accepted
    mailbox: Mailbox
    closed: bool = False

    def hold_back(self) -> None:
        pass

    async def take(self) -> list[Event]:
        return await self.mailbox.take()

    def fail(self, error: ErrorReport) -> None:
        self.mailbox.fail(error)

    async def aclose(self) -> None:
        self.closed = True


@dataclass
class FakePool:
    unloaded: list[str] = field(default_factory=list)
    loaded: bool = True
    loading: ModelState | None = None

    def states(self) -> list[ModelState]:
        if self.loading is not None:
            return [self.loading]
        if not self.loaded:
            return []
        return [ModelState(id=MODEL.id, kind=MODEL.kind, state="loaded", loaded_at=5.0, pid=1, loads=1)]

    def info(self, id: str) -> ModelInfo | None:
        return MODEL if id == MODEL.id else None

    async def stats(self, name: str) -> EngineStats:
        return EngineStats(running=1, steps=7)

    async def load(self, name: str) -> ModelState:
        self.loaded = True
        return self.states()[0]

    async def unload(self, name: str) -> bool:
        was, self.loaded = self.loaded, False
        self.unloaded.append(name)
        return was

    async def pin(self, name: str, pinned: bool) -> ModelState:
        return ModelState(id=name, kind="language", state="loaded", pinned=pinned)

    async def clear_cache(self, **how: Any) -> list[str]:
        return [MODEL.id]

    async def reconfigure(self, name: str | None, changes: dict[str, Any]) -> None:
        pass


def answer_of(task: Task) -> Event:
    """What a tokenizer of one token would say."""
    match task:
        case CountTokens():
            return Counted(1)
        case RenderTemplate():
            return Rendered("Hi", (1,))
        case Tokenize(with_pieces=with_pieces):
            return Tokenized((1,), (b"Hi",) if with_pieces else ())
        case Detokenize():
            return Detokenized("Hi")
        case Transcribe():
            return Transcribed("Hallo.", "de", 1.0, "german")
        case _:
            return failed("unsupported")


class FakeCatalog:
    """Finds the one model, and can neither fetch nor delete any."""

    async def ensure(self, name: str, on_progress: Callable[[int, int, str], None]) -> ModelInfo:
        if name != MODEL.id:
            raise ServerError("model_not_found", f"There is no model {name!r} here.", "model")
        return MODEL

    def remove(self, name: str) -> object:
        raise ServerError("permission", f"The model {name!r} stays.")

    async def search(self, words: str, *, limit: int, mlx_only: bool) -> list[HubModel]:
        found = (
            HubModel(id=f"org/{words}", downloads=7, task=None),
            HubModel(id=MODEL.id, downloads=5, task="x"),
        )
        return list(found)[:limit]

    def missing(self) -> list[ModelInfo]:
        return []

    def suited(self, purpose: str) -> list[Suggestion]:
        told = {"stored_bytes": 1, "needed_bytes": 2, "tokens_per_second": 3.0}
        return [Suggestion(id=f"org/for-{purpose}", tools=True, why="small", **told)]


class FakeService:
    """Plays `events` to each request; `held` ones wait for `go` after them, and a start for `may_start`."""

    def __init__(self, events: Sequence[Event] = SEQUENCES["text"]) -> None:
        self.events = list(events)
        self.runs: list[FakeRun] = []
        self.began = asyncio.Event()
        self.pool = FakePool()
        self.catalog = FakeCatalog()
        self.names = self
        self.hold = False
        self.may_start = asyncio.Event()
        self.may_start.set()
        self.refusal: ErrorReport | None = None
        self.failure: Exception | None = None

    async def start(self, task: Task, *, model: str, id: str, account: str = "") -> FakeRun:
        self.model(model)
        await asyncio.sleep(0)
        await self.may_start.wait()
        if self.failure is not None:
            raise self.failure
        if self.refusal is not None:
            raise ServerError.of(self.refusal)
        accepted, *others = self.events if isinstance(task, Generate) else [Accepted(0), answer_of(task)]
        assert isinstance(accepted, Accepted)
        choices = sum(isinstance(event, Finished) for event in others)
        run = FakeRun(id, task, accepted, Mailbox(max(choices, 1), lambda: None))
        for event in others:
            if not (self.hold and isinstance(event, Finished | PartEnded)):
                run.mailbox.put(event)
        self.runs.append(run)
        self.began.set()
        return run

    async def adopt(self, options: ServerOptions) -> None:
        pass

    def models(self) -> list[ModelInfo]:
        return [MODEL]

    def claude_names(self) -> dict[str, ModelInfo]:
        return {}

    def model(self, name: str) -> ModelInfo:
        if name not in (MODEL.id, "default"):
            raise ServerError("model_not_found", f"The model {name!r} does not exist.", "model")
        return MODEL

    async def find(self, name: str, kind: ModelKind | None = None) -> ModelInfo:
        return await asyncio.to_thread(self.model, name)


def application(service: FakeService, **options: Any) -> ASGIApp:
    return create_app(open_api(cast(Service, service), Settings(server=ServerOptions(**options))))


def routes_of(app: ASGIApp) -> list[Route]:
    """Those of the router behind all guards."""
    inner: Any = app
    while not isinstance(inner, Starlette):
        inner = inner._app
    return [route for route in inner.routes if isinstance(route, Route)]


@asynccontextmanager
async def client_of(app: ASGIApp, **fields: Any) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(
        transport=transport, base_url=fields.pop("base_url", BASE), **fields
    ) as client:
        yield client


@dataclass
class Wire:
    """One exchange with the application, at the level where hang-ups and slow bodies happen."""

    app: ASGIApp
    body: bytes = b""
    path: str = "/v1/chat/completions"
    method: str = "POST"
    headers: tuple[tuple[bytes, bytes], ...] = (
        (b"content-type", b"application/json"),
        (b"host", b"127.0.0.1"),
    )
    sent: list[Message] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    given: bool = False

    async def run(self) -> None:
        scope = {
            "type": "http",
            "method": self.method,
            "path": self.path,
            "raw_path": self.path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": list(self.headers),
            "client": ("127.0.0.1", 5),
            "server": ("127.0.0.1", 8000),
            "scheme": "http",
            "http_version": "1.1",
        }
        await self.app(scope, self.receive, self._send)

    async def receive(self) -> Message:
        if not self.given:
            self.given = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        self.sent.append(message)
        self.arrived.set()

    @property
    def text(self) -> str:
        return b"".join(message.get("body", b"") for message in self.sent).decode()

    async def until(self, text: str) -> None:
        while text not in self.text:
            self.arrived.clear()
            await asyncio.wait_for(self.arrived.wait(), 5)


def failed(kind: Any, message: str = "It failed.") -> Failed:
    return Failed(ErrorReport(kind=kind, message=message))
