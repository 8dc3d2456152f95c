"""An API process beside the first.

It answers chats on connections passed to it, with workers lent to it, and owns nothing. Any other request goes back to
the first process together with its connection.
"""

import asyncio
import faulthandler
import logging
import os
import shutil
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import uvloop

from pippin.api.access.guards import OPEN_PATHS
from pippin.api.access.ledger import SharedLedger
from pippin.api.answers.answer import Running
from pippin.api.app import create_answering
from pippin.api.http.passing import passing
from pippin.api.http.protocol import InTurn, Turns
from pippin.api.http.serving import Uvicorn, allow_many, settle_down
from pippin.api.http.unread import UnreadAnswers
from pippin.api.live_settings import LiveSettings
from pippin.api.processes.logs import configure_logging
from pippin.api.processes.shared import is_shared, is_uncertain
from pippin.api.storage.borrowed import BorrowedStore
from pippin.config.settings import Settings
from pippin.service import ModelSource, Requests
from pippin.service.awake import keeping_awake
from pippin.service.lending.borrower import BorrowedCatalog, BorrowedPool
from pippin.service.lending.channel import Channel
from pippin.service.lending.messages import (
    Adopt,
    AskCounts,
    Began,
    Begin,
    Closed,
    Counts,
    EndAnswer,
    Ended,
    Found,
    FromOwner,
    Leased,
    Lent,
    Models,
    Passed,
    Placed,
    Ready,
    Refused,
    Stop,
    Told,
    WorkerFails,
)
from pippin.service.lending.questions import Questions

log = logging.getLogger(__name__)

LOOK: Final = 0.01  # seconds between checks whether uvicorn has started


OpenCatalog = Callable[[Settings], ModelSource]
"""Reads which models are on this machine's disk."""


def answer(channel: int, open_catalog: OpenCatalog) -> None:
    """Run until the first process says stop or is gone. `channel`: the descriptor of the channel to it."""
    faulthandler.enable()
    allow_many()
    connection = socket.socket(fileno=channel)
    connection.set_inheritable(False)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(connection, open_catalog))


async def run(connection: socket.socket, open_catalog: OpenCatalog) -> None:
    begun: asyncio.Future[Begin] = asyncio.get_running_loop().create_future()
    process: AnsweringProcess | None = None

    def receive(message: FromOwner, descriptor: int | None) -> None:
        if process is not None:
            process.receive(message, descriptor)
        elif isinstance(message, Begin):
            begun.set_result(message)
        elif isinstance(message, Stop):
            os._exit(0)

    def leave() -> None:
        """Exit at once, since nothing can be answered without the first process. Remove the ledger's folder for it."""
        if begun.done():
            shutil.rmtree(Path(begun.result().ledger).parent, ignore_errors=True)
        os._exit(0)

    channel: Channel[FromOwner] = Channel(connection, FromOwner, receive, leave)
    begin = await begun
    configure_logging(begin.settings.server.log_level)
    process = AnsweringProcess(begin, channel, open_catalog(begin.settings))
    await process.run()
    channel.close()


class AnsweringProcess:
    """This process: an application over borrowed models, and the connections passed to it."""

    def __init__(self, begin: Begin, channel: Channel[FromOwner], catalog: ModelSource) -> None:
        self._channel = channel
        options = begin.settings.server
        self._questions = Questions(channel)
        self._pool = BorrowedPool(channel, self._questions)
        awake = keeping_awake(wanted=options.prevent_sleep)
        self._requests = Requests(options, BorrowedCatalog(catalog, self._pool), self._pool, awake)
        self._live = LiveSettings(begin.settings, self._requests)
        self._ledger = SharedLedger(Path(begin.ledger), begin.number)
        store = BorrowedStore(self._questions)
        self._answering = create_answering(self._requests, self._live, self._ledger, store)
        self._answering.answers.listener = self
        unread = UnreadAnswers()
        kind = passing(unread, self, lambda: channel.send(Closed()))
        app = InTurn(self._answering.app, Turns(), OPEN_PATHS)
        self._uvicorn = Uvicorn(app, options, unread, kind, self._requests.end_all)
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve until the first process says stop and running requests have ended."""
        serving = asyncio.create_task(self._uvicorn.serve([]))
        while not self._uvicorn.started:  # noqa: ASYNC110 (uvicorn has no event for it)
            await asyncio.sleep(LOOK)
        settle_down()
        self._channel.send(Ready())
        await serving
        await self._requests.close(0.0)
        self._ledger.close()

    def receive(self, message: FromOwner, descriptor: int | None) -> None:
        """Handle a message of the first process."""
        match message:
            case Passed(data):
                assert descriptor is not None
                self._begin(self._take(socket.socket(fileno=descriptor), data))
            case Models(models):
                self._pool.mirror(models)
            case EndAnswer(run, error):
                self._answering.answers.end(run, error)
            case Adopt(settings):
                self._begin(self._live.adopt(settings))
            case AskCounts():
                self._tell_counts()
            case Stop(deadline):
                self._uvicorn.leave(deadline)
            case Begin():
                pass
            case Lent() | WorkerFails():
                self._pool.receive(message, descriptor)
            case Leased(serial) | Placed(serial) | Found(serial) | Refused(serial) | Told(serial):
                self._questions.answered(serial, message)

    # Methods of `Listener`

    def began(self, answer: Running) -> None:
        self._channel.send(Began(answer.id, answer.exchange_id, answer.owner, tuple(answer.ids)))

    def ended(self, id: str, prompt_tokens: int, completion_tokens: int) -> None:
        self._channel.send(Ended(id, prompt_tokens, completion_tokens))

    # Methods of `Elsewhere`

    def is_meant(self, line: bytes) -> bool:
        return not is_shared(line)

    def may_be_meant(self, line: bytes) -> bool:
        return is_uncertain(line)

    def give(self, descriptor: int, data: bytes) -> bool:
        self._channel.send(Passed(data), os.dup(descriptor))
        return True

    async def _take(self, connection: socket.socket, data: bytes) -> None:
        if not await self._uvicorn.adopt(connection, data):
            self._channel.send(Closed())

    def _tell_counts(self) -> None:
        from pippin.api.telemetry.metrics import Metrics  # a fifth of a second to import

        counted = self._answering.counted
        self._channel.send(Counts(counted.families() if isinstance(counted, Metrics) else []))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
