"""Other servers with OpenAI's API: lists their models, watches them, and sends them requests over HTTP.

A `Peer` is one server. A `RemoteModel` is one model, whichever peers serve it; to the pool it is a worker. If a peer is
lost before it has answered, the other peers take its requests.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import httpx
import msgspec

from pippin.core.errors import ErrorReport, ServerError
from pippin.core.models import EngineStats, ModelInfo, RequestStatus, WorkerSpec
from pippin.core.tasks import Generate, Task
from pippin.runtime.peers.replies import (
    ELSEWHERE,
    AnswerReader,
    BrokenReply,
    SentEvents,
    ServerErrorInStream,
    models_of,
    refusal,
)
from pippin.runtime.peers.requests import upstream_of
from pippin.runtime.replicas.group import LOST, RETRY_AFTER, Seat, Spread
from pippin.runtime.workers.link import Mailbox
from pippin.runtime.workers.worker import Launcher, Worker

log = logging.getLogger(__name__)

CHECK_EVERY: Final = 5.0  # seconds
CHECK_WITHIN: Final = 5.0
CONNECT_WITHIN: Final = 5.0
FAILED_CHECKS: Final = 2  # in a row; a refused connection counts at once
LARGEST_ERROR: Final = 64 << 10  # bytes
LARGEST_LIST: Final = 4 << 20
LARGEST_ANSWER: Final = 256 << 20
"""Bytes of one answer: 100,000 tokens with twenty alternatives each. A reader of whole answers holds it all in
memory."""
FAULT: Final = "The answer could not be passed on because of a fault in the server; its log has more."
GONE: Final = "The server that computed this answer went away. Please send the request again."


@dataclass(eq=False)
class Answering:
    """A request sent to a peer."""

    mailbox: Mailbox
    heard: float  # when the peer last sent any of it
    task: "asyncio.Task[None] | None" = None


class Peer:
    """One other server: whether it is up, its models, and the requests sent to it."""

    def __init__(
        self, address: str, key: str | None, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self.address = address.rstrip("/").removesuffix("/v1")
        self.models: dict[str, ModelInfo] = {}
        self.up = False
        self.is_pippin = False
        self._failed = 0
        self._running: dict[str, Answering] = {}
        self._client = httpx.AsyncClient(
            base_url=self.address,
            # Compression would let a few bytes expand without bound.
            headers={"Accept-Encoding": "identity"}
            | ({} if key is None else {"Authorization": f"Bearer {key}"}),
            # Answers may take long; the service enforces the request's own time limit.
            timeout=httpx.Timeout(None, connect=CONNECT_WITHIN),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
            transport=transport,
            trust_env=False,
        )

    async def check(self) -> None:
        """Ask for the models, which also tells whether the peer is up."""
        try:
            async with asyncio.timeout(CHECK_WITHIN), self._client.stream("GET", "/v1/models") as reply:
                if reply.status_code != 200:
                    raise BrokenReply(f"/v1/models answers with status {reply.status_code}")
                found, self.is_pippin = models_of(await read_list(reply))
        except (TimeoutError, httpx.HTTPError, BrokenReply) as error:
            self._failed += 1
            if self._failed >= FAILED_CHECKS or not self.models:
                self.lost(str(error) or type(error).__name__)
                self._give_up_silent()
            return
        self._failed = 0
        self.models = {info.id: info for info in found}
        if not self.up:
            log.info("The peer %s is there: %s.", self.address, ", ".join(self.models) or "no models")
        self.up = True

    def lost(self, why: str) -> None:
        """Send the peer nothing until a check succeeds."""
        if self.up:
            log.warning("The peer %s is lost: %s.", self.address, why)
        self.up = False

    def submit(self, id: str, task: Task, choices: int, mailbox: Mailbox) -> None:
        """Start a request. Raises `ServerError` if this server cannot serve it."""
        if not isinstance(task, Generate):
            message = "The model runs on another server, which is asked for generations alone."
            raise ServerError("unsupported", message, "model")
        upstream = upstream_of(task.request, task.request.model, pippin=self.is_pippin)
        reader = AnswerReader(choices, tells_progress=self.is_pippin)
        request = self._client.build_request(
            "POST",
            upstream.path,
            content=msgspec.json.encode(upstream.body),
            headers={"Content-Type": "application/json"},
        )
        answering = self._running[id] = Answering(mailbox, time.monotonic())
        answering.task = asyncio.create_task(self._answer(request, reader, answering), name=f"peer {id}")
        answering.task.add_done_callback(partial(self._ended, id, answering))

    def cancel(self, id: str) -> None:
        """Hang up, which tells the other server that nobody reads any more."""
        answering = self._running.pop(id, None)
        if answering is not None and answering.task is not None:
            answering.task.cancel()

    async def close(self) -> None:
        running = [each.task for each in self._running.values() if each.task is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._client.aclose()

    def _give_up_silent(self) -> None:
        """Fail the requests of which nothing was received lately: a server that is stopped (SIGSTOP) in the middle of
        an answer keeps its connections open and sends nothing."""
        before = time.monotonic() - CHECK_EVERY
        for request, each in list(self._running.items()):
            if each.heard < before:
                self.cancel(request)
                each.mailbox.fail(ErrorReport(kind=LOST, message=GONE))

    def _ended(self, id: str, answering: Answering, task: "asyncio.Task[None]") -> None:
        if self._running.get(id) is answering:
            del self._running[id]
        if not task.cancelled() and (fault := task.exception()) is not None:
            # A fault in this server: another peer's answer would meet it too.
            log.error("An answer of the peer %s can't be passed on.", self.address, exc_info=fault)
            answering.mailbox.fail(ErrorReport(kind="internal", message=FAULT))

    async def _answer(self, request: httpx.Request, reader: AnswerReader, answering: Answering) -> None:
        mailbox = answering.mailbox
        try:
            reply = await self._client.send(request, stream=True)
            async with contextlib.aclosing(reply):
                if reply.status_code == 200:
                    await self._read(reply, reader, answering)
                else:
                    await self._refused(reply, mailbox)
        except httpx.HTTPError as error:
            self.lost(f"{type(error).__name__} {error}".strip())
            mailbox.fail(ErrorReport(kind=LOST, message=GONE))
        except (BrokenReply, ServerErrorInStream) as error:
            log.warning("The peer %s broke off an answer: %s.", self.address, error)
            mailbox.fail(ErrorReport(kind=LOST, message=GONE))

    async def _read(self, reply: httpx.Response, reader: AnswerReader, answering: Answering) -> None:
        mailbox = answering.mailbox
        for event in reader.begun():
            mailbox.put(event)
        events = SentEvents()
        async for data in bounded(reply, LARGEST_ANSWER, "its answer"):
            answering.heard = time.monotonic()
            for sent in events.feed(data):
                for event in reader.chunk(sent):
                    mailbox.put(event)
        for event in reader.end():
            mailbox.put(event)

    async def _refused(self, reply: httpx.Response, mailbox: Mailbox) -> None:
        status = reply.status_code
        body = bytearray()
        with contextlib.suppress(BrokenReply):  # use what was received
            async for data in bounded(reply, LARGEST_ERROR, "its error"):
                body += data
        if status >= 500 or status in ELSEWHERE:
            log.warning("The peer %s refused a request with status %d.", self.address, status)
            message = "The server that runs the model does not take the request now; try again later."
            mailbox.fail(ErrorReport(kind=LOST, message=message, retry_after=RETRY_AFTER))
        else:
            mailbox.fail(refusal(status, bytes(body)))


async def bounded(reply: httpx.Response, most: int, what: str) -> AsyncIterator[bytes]:
    """Yield the body as it arrives. Raises `BrokenReply` if it is too long, or compressed without being asked to."""
    if reply.headers.get("content-encoding", "identity").lower() != "identity":
        raise BrokenReply(f"{what} is packed")
    left = most
    async for data in reply.aiter_bytes():  # as sent, because nothing is compressed
        left -= len(data)
        if left < 0:
            raise BrokenReply(f"{what} is longer than {most} bytes")
        yield data


async def read_list(reply: httpx.Response) -> bytes:
    """The body of `/v1/models`. Raises `BrokenReply`."""
    return b"".join([data async for data in bounded(reply, LARGEST_LIST, "its list of models")])


@dataclass(eq=False)
class RemotePlace:
    """A peer that serves one model, which it knows as `model`."""

    peer: Peer
    model: str

    def submit(self, id: str, task: Task, choices: int, mailbox: Mailbox) -> None:
        if isinstance(task, Generate):
            task = Generate(msgspec.structs.replace(task.request, model=self.model))
        self.peer.submit(id, task, choices, mailbox)

    def cancel(self, id: str) -> None:
        self.peer.cancel(id)


class RemoteModel:
    """A model on peers as a `Worker`: it is ready at once, takes no memory here, and never dies."""

    def __init__(self, spec: WorkerSpec, peers: "Peers") -> None:
        loop = asyncio.get_running_loop()
        self._spec = spec
        self._peers = peers
        self._seats = [Seat(RemotePlace(peer, spec.info.id)) for peer in peers.all]
        self._spread = Spread(spec.info.id, self._open_seats)
        self.prompt_ready: asyncio.Future[None] = loop.create_future()
        self.weights_ready: asyncio.Future[None] = loop.create_future()
        self.died: asyncio.Future[ErrorReport] = loop.create_future()
        self.prompt_ready.set_result(None)
        self.pid: int | None = None
        self.footprint = 0
        self.progress: tuple[int, int, str] | None = None

    @property
    def info(self) -> ModelInfo:
        return self._peers.models().get(self._spec.info.id, self._spec.info)

    def load_weights(self, memory_bytes: int | None) -> None:
        self.weights_ready.set_result(None)

    def submit(self, id: str, task: Task, choices: int, mailbox: Mailbox | None = None) -> Mailbox:
        assert mailbox is None, "peers are not nested"
        return self._spread.submit(id, task, choices)

    def cancel(self, id: str) -> None:
        self._spread.cancel(id)

    def fail_all(self, error: ErrorReport) -> None:
        self._spread.fail_all(error)

    def clear_cache(self, *, prefixes_only: bool, disk: bool) -> None:
        """Does nothing: the peers own their caches."""

    def reconfigure(self, options: dict[str, object]) -> None:
        """Does nothing: the peers set their engines' options."""

    async def stats(self) -> EngineStats:
        requests = tuple(RequestStatus(id=each, phase="generation") for each in self._spread.active)
        return EngineStats(running=len(requests), requests=requests)

    async def stop(self, deadline: float) -> None:
        report = ErrorReport(kind="overloaded", message="The model was unloaded.", retry_after=1.0)
        self._spread.fail_all(report)
        if not self.died.done():
            self.died.set_result(report)

    def _open_seats(self) -> list[Seat]:
        model = self._spec.info.id
        return [
            seat
            for seat, peer in zip(self._seats, self._peers.all, strict=True)
            if peer.up and model in peer.models
        ]


class Peers:
    """All peers, watched from `start` to `close`."""

    def __init__(self, peers: list[Peer]) -> None:
        self.all = peers
        self._watches: list[asyncio.Task[None]] = []

    def models(self) -> dict[str, ModelInfo]:
        """The peers' models by name, from the first peer that has each; includes lost peers, which may come back."""
        known: dict[str, ModelInfo] = {}
        for peer in self.all:
            known = peer.models | known
        return known

    async def start(self) -> None:
        """Check every peer once, and from then on every few seconds."""
        await asyncio.gather(*(peer.check() for peer in self.all))
        for peer in self.all:
            if not peer.up:
                log.warning(
                    "The peer %s does not answer yet; it is looked for every few seconds.", peer.address
                )
        self._watches = [asyncio.create_task(self._watch(peer)) for peer in self.all]

    async def close(self) -> None:
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        await asyncio.gather(*(peer.close() for peer in self.all))

    async def _watch(self, peer: Peer) -> None:
        while True:
            await asyncio.sleep(CHECK_EVERY)
            await peer.check()


@dataclass(frozen=True)
class PeerLauncher:
    """Starts a model on peers without a process, and all others with `launch`."""

    peers: Peers
    launch: Launcher

    async def __call__(self, spec: WorkerSpec) -> Worker:
        return RemoteModel(spec, self.peers) if spec.info.remote else await self.launch(spec)
