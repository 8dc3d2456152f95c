"""The first API process's view of the others: starts them, passes them connections, and holds what they share.

The first process owns the models, all stored data, and every address. It accepts all connections, and passes those
whose first request is a chat to one of the others (`api/http/passing.py`). Each of the others has a channel to the
first process, which carries a lease for each request, but never a token.
"""

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from pippin.api.access.ledger import SharedLedger
from pippin.api.answers.answer import RunningAnswers
from pippin.api.live_settings import LiveSettings
from pippin.api.processes.logs import forward
from pippin.api.processes.shared import is_shared
from pippin.api.storage.borrowed import told
from pippin.api.storage.response_store import ResponseStore
from pippin.config.options.server import ServerOptions
from pippin.config.settings import Settings
from pippin.core.errors import ErrorReport, ServerError
from pippin.core.traces import trace_of
from pippin.service import Service, until_stopped
from pippin.service.lending.channel import Channel
from pippin.service.lending.counts import Counted
from pippin.service.lending.lender import Lender
from pippin.service.lending.messages import (
    Adopt,
    AskCounts,
    Began,
    Begin,
    Closed,
    Counts,
    EndAnswer,
    Ended,
    Family,
    Keep,
    Models,
    Passed,
    Pooled,
    Ready,
    Recall,
    Refused,
    Stop,
    ToOwner,
)

log = logging.getLogger(__name__)

MODULE: Final = "pippin.cli.answering"

FIRST_PAUSE: Final = 0.1  # seconds before a process that has died is started again
LONGEST_PAUSE: Final = 30.0
LIVED: Final = 10.0  # seconds; a process that lived longer did not fail to start
TELL_EVERY: Final = 0.2  # seconds between checks of the pool
COUNT_EVERY: Final = 5.0  # seconds; newer counts are lost when a process is killed
COUNT_WAIT: Final = 1.0
LEAVE_WITHIN: Final = 3.0  # seconds beyond the drain timeout


def check_options(settings: Settings) -> None:
    """Raises `ServerError` for options that several API processes can't honour."""
    options = settings.server
    several = {
        "mcp-config": options.mcp_config is not None,
        "compat mlx-vlm (without --enable-metrics)": settings.compat == "mlx-vlm"
        and not options.enable_metrics,
    }
    if given := [name for name, value in several.items() if value]:
        message = f"--api-processes can't be used together with --{given[0]} yet; leave out one of the two."
        raise ServerError("unsupported", message, "api_processes")


class ApiProcesses:
    """All API processes except the first, which is this one. `start` and `close` are called once each."""

    def __init__(self, live: LiveSettings, service: Service) -> None:
        """Raises `ServerError` for options that can't be used."""
        check_options(live.settings)
        self._live = live
        self._service = service
        self._folder = Path(tempfile.mkdtemp(prefix="pippin-"))
        self.ledger = SharedLedger(self._folder / "limits.db", 0)
        count = live.options.api_processes
        self._processes = [ApiProcess(number, self) for number in range(1, count + 1)]
        self._answers: RunningAnswers | None = None
        self._store: ResponseStore | None = None
        self._adopt: Callable[[socket.socket, bytes], Awaitable[bool]] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._keeping: list[asyncio.Task[None]] = []
        self._told: list[Pooled] = []
        self._departed: list[Family] = []
        self._deadline = 0.0  # seconds for running requests when all are to stop
        self.stopped = asyncio.Event()

    def connect(self, answers: RunningAnswers, store: ResponseStore) -> None:
        """`answers`: the running answers of this process, where those of the others are added. `store` is for all."""
        self._answers = answers
        self._store = store
        self._live.follow(self._settings_changed)

    def start(self, adopt: Callable[[socket.socket, bytes], Awaitable[bool]]) -> None:
        """Start the processes. `adopt` serves a connection that one of them passes back."""
        self._adopt = adopt
        self._keeping = [
            asyncio.create_task(process.keep(), name=f"API process {process.number}")
            for process in self._processes
        ]
        self._begin(self._tell())
        self._begin(self._count())

    # Methods of `Elsewhere`

    def is_meant(self, line: bytes) -> bool:
        return is_shared(line)

    def may_be_meant(self, line: bytes) -> bool:
        return False

    def give(self, descriptor: int, data: bytes) -> bool:
        """Pass a connection to the ready process that has the fewest; False if none is ready."""
        able = [each for each in self._processes if each.able]
        if not able:
            return False
        min(able, key=lambda each: each.connections).take(descriptor, data)
        return True

    @property
    def requests(self) -> int:
        """The number of requests that the others are answering."""
        return sum(process.requests for process in self._processes)

    def describe(self) -> list[dict[str, Any]]:
        """What `/health` reports of each process."""
        return [process.describe() for process in self._processes]

    async def counts(self) -> list[list[Family]]:
        """The counts of each process, and of those that have ended."""
        await asyncio.gather(*(process.count() for process in self._processes))
        return [self._departed, *(process.counted.families for process in self._processes)]

    def stop(self, deadline: float) -> None:
        """Stop the others: they accept no more requests, and running ones have `deadline` seconds to finish."""
        self._deadline = deadline
        self.stopped.set()
        for process in self._processes:
            process.stop(deadline)

    @property
    def stopping(self) -> bool:
        return self.stopped.is_set()

    async def close(self) -> None:
        """Stop the processes if they were not told to, and wait until all have ended; late ones are killed."""
        if not self.stopping:
            self.stop(0.0)
        if self._keeping:
            _, late = await asyncio.wait(self._keeping, timeout=self._deadline + LEAVE_WITHIN)
            for process in self._processes if late else ():
                process.kill()
            await asyncio.wait(self._keeping)
        for task in self._tasks:
            task.cancel()
        self.ledger.close()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    # Used by `ApiProcess`

    @property
    def live(self) -> LiveSettings:
        return self._live

    @property
    def ledger_path(self) -> str:
        return str(self._folder / "limits.db")

    @property
    def models(self) -> list[Pooled]:
        pool = self._service.pool
        return [Pooled(state, pool.info(state.id)) for state in pool.states()]

    @property
    def answers(self) -> RunningAnswers:
        assert self._answers is not None
        return self._answers

    def lender(self, channel: Channel[ToOwner]) -> Lender:
        service = self._service
        return Lender(service.pool, channel, service.find, service.fetch, service.complete)

    def answer(self, question: Keep | Recall, channel: Channel[ToOwner]) -> None:
        """Answer a question about stored entries, on a thread, because entries may be large."""
        assert self._store is not None
        self._begin(self._answer(self._store, question, channel))

    async def _answer(self, store: ResponseStore, question: Keep | Recall, channel: Channel[ToOwner]) -> None:
        try:
            channel.send(await asyncio.to_thread(told, store, question))
        except ServerError as error:
            channel.send(Refused(question.serial, error.report))
        except Exception as error:  # the process that asks waits for an answer
            log.error("The store of responses could not be asked.\n%s", trace_of(error))
            message = "The request failed because of a fault in the server; its log has more."
            channel.send(Refused(question.serial, ErrorReport(kind="internal", message=message)))

    def take_back(self, connection: socket.socket, data: bytes) -> None:
        """Serve a connection that another process has passed back."""
        if self.stopping:
            connection.close()
        else:
            self._begin(self._serve(connection, data))

    async def _serve(self, connection: socket.socket, data: bytes) -> None:
        assert self._adopt is not None
        await self._adopt(connection, data)

    def depart(self, process: "ApiProcess") -> None:
        """Clean up after a process that has ended."""
        self._departed = process.counted.joined(self._departed)
        process.counted = Counted()
        self.ledger.forget(process.number)

    def _settings_changed(self, options: ServerOptions) -> None:
        for process in self._processes:
            process.adopt()

    def _begin(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell(self) -> None:
        """Tell the others which models are in memory, whenever that has changed."""
        while True:
            await asyncio.sleep(TELL_EVERY)
            models = self.models
            if (now := _without_use(models)) != self._told:
                self._told = now
                for process in self._processes:
                    process.tell(models)

    async def _count(self) -> None:
        while self._live.options.enable_metrics:
            await asyncio.sleep(COUNT_EVERY)
            await asyncio.gather(*(process.count() for process in self._processes))


def _without_use(models: Sequence[Pooled]) -> list[Pooled]:
    """The models without the fields that change with each request."""
    return [
        Pooled(msgspec.structs.replace(model.state, active=0, last_used=None), model.info) for model in models
    ]


@dataclass(frozen=True)
class AnswerElsewhere:
    """A running answer of another process."""

    id: str
    exchange_id: str
    owner: str
    ids: tuple[str, ...]
    send: Callable[[msgspec.Struct], None]

    def end(self, report: ErrorReport) -> None:
        self.send(EndAnswer(self.id, report))


@dataclass
class ApiProcess:
    """One process beside the first: restarted whenever it has ended, until all are to stop."""

    number: int
    others: ApiProcesses
    connections: int = 0
    restarts: int = 0
    counted: Counted = field(default_factory=Counted)
    _pid: int | None = None
    _ready: bool = False
    _channel: Channel[ToOwner] | None = None
    _lender: Lender | None = None
    _answers: set[str] = field(default_factory=set)

    @property
    def able(self) -> bool:
        return self._ready and self._channel is not None and not self._channel.full

    @property
    def requests(self) -> int:
        return len(self._answers)

    def describe(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "pid": self._pid,
            "state": "ready" if self._ready else "starting",
            "connections": self.connections,
            "requests": self.requests,
            "restarts": self.restarts,
        }

    def take(self, descriptor: int, data: bytes) -> None:
        self.connections += 1
        self._send(Passed(data), os.dup(descriptor))

    def adopt(self) -> None:
        if self._ready:
            self._send(Adopt(self.others.live.settings))

    def tell(self, models: list[Pooled]) -> None:
        if self._ready:
            self._send(Models(models))

    def stop(self, deadline: float) -> None:
        self._ready = False
        self._send(Stop(deadline))

    def kill(self) -> None:
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)

    async def count(self) -> None:
        """Bring `counted` up to date, if the process answers soon."""
        if self._ready:
            self._send(AskCounts())
            await self.counted.next(COUNT_WAIT)

    async def keep(self) -> None:
        """Run the process until all are to stop."""
        pause = FIRST_PAUSE
        while not self.others.stopping:
            began = time.monotonic()
            status = await self._run()
            if self.others.stopping:
                return
            log.error("API process %d has ended with status %s; it is started again.", self.number, status)
            pause = FIRST_PAUSE if time.monotonic() - began > LIVED else min(2 * pause, LONGEST_PAUSE)
            self.restarts += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.others.stopped.wait(), pause)

    async def _run(self) -> int:
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", MODULE, str(theirs.fileno())),
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=STDOUT,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # Ctrl-C in the server's terminal is for the first process alone
            )
        assert process.stdout is not None
        self._pid = process.pid
        reading = asyncio.create_task(forward(process.stdout, self.number))
        self._channel = Channel(ours, ToOwner, self._receive, self.kill)
        self._lender = self.others.lender(self._channel)
        self._send(Begin(self.others.live.settings, self.number, self.others.ledger_path))
        if self.others.stopping:
            self._send(Stop(0.0))
        watching = asyncio.create_task(self._end_if_stopped(process.pid))
        try:
            status = await process.wait()
            await asyncio.wait({reading}, timeout=1.0)
        finally:
            self._clear_up()
            reading.cancel()
            watching.cancel()
        return status

    async def _end_if_stopped(self, pid: int) -> None:
        """Kill the process if it is suspended for long: it keeps connections, leases and the lock on the limits."""
        if await until_stopped(pid):
            log.error("API process %d is stopped (SIGSTOP), and is ended.", self.number)
            self.kill()

    def _clear_up(self) -> None:
        self._ready, self._pid, self.connections = False, None, 0
        if self._lender is not None:
            self._lender.close()
        if self._channel is not None:
            self._channel.close()
        for answer in self._answers:
            self.others.answers.ended_elsewhere(answer)
        self._answers.clear()
        self.others.depart(self)

    def _send(self, message: msgspec.Struct, descriptor: int | None = None) -> None:
        if self._channel is not None:
            self._channel.send(message, descriptor)
        elif descriptor is not None:
            os.close(descriptor)

    def _receive(self, message: ToOwner, descriptor: int | None) -> None:
        match message:
            case Passed(data):
                assert descriptor is not None
                self.others.take_back(socket.socket(fileno=descriptor), data)
            case Closed():
                self.connections -= 1
            case Began(run, exchange, owner, ids):
                self._answers.add(run)
                found = AnswerElsewhere(run, exchange, owner, ids, self._send)
                self.others.answers.began_elsewhere(found)
            case Ended(run, prompt_tokens, completion_tokens):
                self._answers.discard(run)
                self.others.answers.ended_elsewhere(run, prompt_tokens, completion_tokens)
            case Counts(families):
                self.counted.take(families)
            case Keep() | Recall():
                assert self._channel is not None
                self.others.answer(message, self._channel)
            case Ready():
                self._ready = not self.others.stopping
                self.adopt()
                self.tell(self.others.models)
                log.info("API process %d is ready (process %s).", self.number, self._pid)
            case _:
                assert self._lender is not None
                self._lender.receive(message)
