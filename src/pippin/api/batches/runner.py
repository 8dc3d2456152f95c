"""The batches of a server, whose lines it answers itself, at a lower priority than all other requests."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Literal
from uuid import uuid4

from msgspec import Struct, field
from starlette.types import ASGIApp, Receive, Scope, Send

from pippin.api.access.errors import INTERNAL
from pippin.api.access.exchange import SCOPE_KEY, Exchange
from pippin.api.access.guards import check_endpoint
from pippin.api.access.keys import Key, Keyring
from pippin.api.answers.answer import RunningAnswers
from pippin.api.batches.openai import is_error, request_of, result
from pippin.api.batches.store import Batch, BatchStore, Line, Status
from pippin.api.dialects.shared.openai import encode_error
from pippin.api.stored_responses.response_store import ResponseStore
from pippin.config.environment import home
from pippin.config.options.server import ServerOptions
from pippin.core.errors import ErrorReport, ServerError, trace_of

log = logging.getLogger(__name__)

LOOKED_AHEAD: Final = 64  # lines
TRIES: Final = 4  # of a line that fails through a fault of the server
FIRST_WAIT: Final = 0.5  # seconds before a line is tried again
LONGEST_WAIT: Final = 30.0
FAULT_SECONDS: Final = 30.0
"""After which batches continue after a fault, such as a full disk."""
PAUSE: Final = 0.25  # seconds between checks whether others need the model
UNWRITABLE: Final = "overloaded"
"""The kind of error if the database can't be read or written now."""
WRITE_AGAIN: Final = 1.0  # seconds
SWEEP_SECONDS: Final = 600.0
CAME_TO_NOTHING: Final = (429, 503, 529)  # these pass, so a line is retried without end
SERVERS_FAULT: Final = 500
LOAD_FAILED: Final = 424


class Reply(Struct, frozen=True):
    """The reply to one request."""

    request: str  # the request's id
    status: int
    body: bytes


Ask = Callable[[Batch, bytes], Awaitable[Reply]]
"""Answers one line of a batch, given the line as it stands in the file."""


class _Reading(Struct):
    """How far the lines of a batch were read."""

    ahead: deque[Line]
    last: int = -1
    faults: dict[int, int] = field(default_factory=dict)  # of the server, by line number
    wait: float = 0.0  # seconds
    rests_until: float = 0.0

    def again(self, line: Line) -> None:
        """Retry a line that came to nothing: it comes next, after a wait that doubles until a line is answered."""
        self.ahead.appendleft(line)
        self.wait = min(2 * self.wait, LONGEST_WAIT) or FIRST_WAIT
        self.rests_until = time.monotonic() + self.wait


class BatchRunner:
    """Runs the lines of all unfinished batches, in turn by batch.

    Up to `concurrency` lines run at once while no other request runs, and one line otherwise. Lines have the lowest
    priority, so that a line waits for every other request, and is preempted for it. If a line comes to nothing, for
    example because its model has no room, its batch pauses for a while, and the others continue.
    """

    def __init__(self, store: BatchStore, ask: Ask, others: Callable[[], int], concurrency: int) -> None:
        """`others` returns the number of running requests that are not lines of batches."""
        self._store = store
        self._ask = ask
        self._others = others
        self._concurrency = concurrency
        self._reading: dict[str, _Reading] = {}
        self._turns: deque[Batch] = deque()
        self._active: dict[asyncio.Task[None], str] = {}
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._swept = 0.0
        self._rests = False

    def start(self) -> None:
        """Continue the batches that an earlier server left unfinished."""
        if not self._store.exists:
            return
        try:
            self._turns.extend(self._store.unfinished())
        except ServerError as error:
            log.warning("Batches are left to another server: %s", error.report.message)
            return
        if self._turns:
            log.info("Going on with %d unfinished batches.", len(self._turns))
            self._wake()

    def add(self, batch: Batch) -> None:
        """Start a batch whose lines are in the store."""
        self._turns.append(batch)
        self._wake()

    async def cancel(self, batch: Batch) -> Batch:
        """Cancel a batch; its answers so far are kept. A batch that has ended, or is finalizing, stays as it is."""
        own = next((each for each in self._turns if each.id == batch.id), None)
        if own is None or own.ended or own.status == "finalizing":
            return batch
        if own.status != "cancelling":
            await self._enter(own, "cancelling")
            for task, of in self._active.items():
                if of == own.id:
                    task.cancel()
            self._changed.set()
        return own

    def rest(self) -> None:
        """Start no more lines: the server stops."""
        self._rests = True

    async def close(self) -> None:
        """Stop; lines that run are started again by the next server."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for task in self._active:
            task.cancel()
        await asyncio.gather(*self._active, return_exceptions=True)
        self._store.close()

    def _wake(self) -> None:
        self._changed.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="batches")

    async def _run(self) -> None:
        while True:
            try:
                await self._end_finished()
                if time.monotonic() - self._swept > SWEEP_SECONDS:
                    self._swept = time.monotonic()
                    await asyncio.to_thread(self._store.sweep)
                await self._fill()
            except Exception as error:  # otherwise all batches would stop without a word
                why = str(error) if isinstance(error, ServerError | OSError) else trace_of(error)
                log.error("Batches wait for %g seconds: %s", FAULT_SECONDS, why)
                await asyncio.sleep(FAULT_SECONDS)
                continue
            if not self._turns:
                return
            self._changed.clear()
            waiting = asyncio.create_task(self._changed.wait())
            await asyncio.wait({waiting, *self._active}, timeout=PAUSE, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()

    async def _fill(self) -> None:
        """Start lines, in turn by batch, while there is room for them."""
        idle = 0
        while not self._rests and idle < len(self._turns):
            if len(self._active) >= (1 if self._others() else self._concurrency):
                return
            batch = self._turns[0]
            self._turns.rotate(-1)
            line = await self._next(batch)
            if line is None:
                idle += 1
                continue
            idle = 0
            task = asyncio.create_task(self._do(batch, line), name=f"line {line.number} of {batch.id}")
            self._active[task] = batch.id
            task.add_done_callback(self._done)

    async def _next(self, batch: Batch) -> Line | None:
        if batch.status == "validating":
            await self._enter(batch, "in_progress")
        if batch.status != "in_progress":
            return None
        if time.time() >= batch.expires_at:
            batch.times["expired"] = int(time.time())
            await self._enter(batch, "finalizing")
            return None
        reading = self._reading.setdefault(batch.id, _Reading(deque()))
        if time.monotonic() < reading.rests_until:
            return None
        if not reading.ahead:
            reading.ahead.extend(
                await asyncio.to_thread(self._store.open_lines, batch.id, reading.last, LOOKED_AHEAD)
            )
            if batch.status != "in_progress":
                return None  # it was cancelled meanwhile
        if not reading.ahead:
            if batch.id not in self._active.values():
                reading.last = -1  # a line whose answer could not be written is still open
            return None
        line = reading.ahead.popleft()
        reading.last = max(reading.last, line.number)
        return line

    async def _do(self, batch: Batch, line: Line) -> None:
        reading = self._reading[batch.id]
        try:
            text = await asyncio.to_thread(self._text, batch, line)
        except ServerError as error:
            if error.report.kind == UNWRITABLE:
                reading.again(line)
            else:  # there is no room for the answer
                await self._answered(batch, line, refused(error.report))
            return
        except OSError as error:  # the file was deleted behind our back
            message = f"The file {batch.input_file} of the batch cannot be read: {error.strerror}."
            await self._answered(batch, line, refused(ErrorReport(kind="not_found", message=message)))
            return
        try:
            reply = await self._ask(batch, text)
        except Exception as error:  # of any kind: a line without an answer would be retried forever
            log.error("A line of the batch %s could not be asked.\n%s", batch.id, trace_of(error))
            reply = refused(INTERNAL)
        if reply.status in CAME_TO_NOTHING:
            reading.again(line)
            return
        if reply.status >= SERVERS_FAULT or reply.status == LOAD_FAILED:
            reading.faults[line.number] = tries = reading.faults.get(line.number, 0) + 1
            if tries < TRIES:
                reading.again(line)
                return
        reading.faults.pop(line.number, None)
        reading.wait = reading.rests_until = 0.0
        await self._answered(batch, line, reply)

    async def _answered(self, batch: Batch, line: Line, reply: Reply) -> None:
        """Write the answer of a line, retrying while the database can't be written."""
        while True:
            try:
                return await asyncio.to_thread(
                    self._store.answered, batch, line.number, reply.status, reply.request, reply.body
                )
            except ServerError as error:
                if error.report.kind != UNWRITABLE:
                    raise
                await asyncio.sleep(WRITE_AGAIN)

    def _done(self, task: asyncio.Task[None]) -> None:
        batch = self._active.pop(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("A line of the batch %s could not be answered: %r", batch, error)
        self._changed.set()

    def _text(self, batch: Batch, line: Line) -> bytes:
        self._store.check_room(batch.owner)
        with self._store.open_file(batch.owner, batch.input_file) as file:
            file.seek(line.start)
            return file.read(line.length)

    async def _end_finished(self) -> None:
        for batch in list(self._turns):
            reading = self._reading.get(batch.id)
            more = (reading is None or reading.ahead) and batch.status in ("validating", "in_progress")
            if more or batch.id in self._active.values():
                continue
            if batch.status == "in_progress":
                left = await asyncio.to_thread(self._store.open_lines, batch.id, -1, 1)
                if left:
                    continue
            await self._end(batch)

    async def _end(self, batch: Batch) -> None:
        last: Status = "completed"
        if "cancelling" in batch.times:
            last = "cancelled"
        elif "expired" in batch.times:
            last = "expired"
        if last == "completed":
            await self._enter(batch, "finalizing")
        await asyncio.to_thread(self._write_results, batch)
        _begin(batch, last)
        await asyncio.to_thread(self._store.end, batch)
        if batch in self._turns:
            self._turns.remove(batch)
        self._reading.pop(batch.id, None)
        log.info("The batch %s is %s.", batch.id, last)

    def _write_results(self, batch: Batch) -> None:
        counts = self._store.counts(batch)
        if counts.completed and batch.output_file is None:  # it exists if only the other could not be written
            batch.output_file = self._result_file(batch, "output")
        if counts.failed or (counts.open and "expired" in batch.times):
            batch.error_file = self._result_file(batch, "error")

    def _result_file(self, batch: Batch, what: Literal["output", "error"]) -> str:
        """The id of the new file of a batch's answers, or of its errors."""
        expired, lasts = "expired" in batch.times, batch.output_expires_after
        pieces = (
            result(line) + b"\n"
            for line in self._store.lines(batch.id)
            if (line.status is not None or expired) and is_error(line) == (what == "error")
        )
        return self._store.add_file(
            batch.owner,
            f"{batch.id}_{what}.jsonl",
            "batch_output",
            pieces,
            expires_at=None if lasts is None else int(time.time()) + lasts,
        ).id

    async def _enter(self, batch: Batch, status: Status) -> None:
        _begin(batch, status)
        await asyncio.to_thread(self._store.put, batch)


def _begin(batch: Batch, status: Status) -> None:
    batch.status = status
    batch.times.setdefault(status, int(time.time()))


def refused(report: ErrorReport) -> Reply:
    """The reply to a line that is not run."""
    return Reply(uuid4().hex, report.status, encode_error(report))


HEADERS: Final = {"content-type": "application/json"}
WITHDRAWN: Final = ErrorReport(
    kind="permission", message="The API key to which this batch belongs is not known any more."
)


class Batches:
    app: ASGIApp
    """The application that answers the lines: it is made with this object, and sets itself here."""

    def __init__(
        self, options: ServerOptions, running: RunningAnswers, keys: Keyring, responses: ResponseStore
    ) -> None:
        """`running` counts other running requests; `keys` are the guard's keys, so that a key opens as much to a line
        of a batch as to a direct request; `responses` are those of the application."""
        self._keys = keys
        self._responses = responses
        self._again: set[asyncio.Task[None]] = set()
        folder = home() / "files" if options.files_dir is None else Path(options.files_dir).expanduser()
        self.store = BatchStore(folder, megabytes=options.files_mb)
        self.runner = BatchRunner(self.store, self._ask, lambda: running.live, options.batch_concurrency)

    def start(self) -> None:
        """Go on with what an earlier server left unfinished: batches, and responses in the background."""
        self.runner.start()
        try:
            unfinished = self._responses.take_unfinished()
        except ServerError as error:
            log.warning("Responses in the background are not begun again: %s", error.report.message)
            return
        for owner, own, body in unfinished:
            log.info("The response %s is begun again.", own)
            task = asyncio.create_task(self._begin_again(owner, own, body), name=f"begin {own} again")
            self._again.add(task)
            task.add_done_callback(self._again.discard)

    async def _begin_again(self, owner: str, id: str, body: bytes) -> None:
        reply = refused(WITHDRAWN)
        while (key := self._keys.of_owner(owner)) is not None or not owner:
            reply = await self._post("/v1/responses", body, key, owner, id)
            if reply.status not in CAME_TO_NOTHING:
                break
            await asyncio.sleep(LONGEST_WAIT)
        if reply.status >= 400:
            await asyncio.to_thread(self._responses.ends, owner, id)

    async def _ask(self, batch: Batch, text: bytes) -> Reply:
        key = self._keys.of_owner(batch.owner)
        if batch.owner and key is None:
            return refused(WITHDRAWN)
        if key is not None:
            try:
                check_endpoint(key, batch.endpoint)
            except ServerError as error:  # the right was withdrawn since the batch began
                return refused(error.report)
        path, body = request_of(text)
        return await self._post(path, body, key, batch.owner, uuid4().hex)

    async def _post(self, path: str, body: bytes, key: Key | None, owner: str, id: str) -> Reply:
        """Send a request to the server itself, as a client would, with the rights of a batch's owner.

        It goes to the routes without the guards in front of them, whose checks were made for the batch, at the lowest
        priority. `id`: of the answer.
        """
        # Slow to import, and only needed here: nobody else waits for that.
        await asyncio.to_thread(__import__, "httpx")
        import httpx

        exchange = Exchange(
            id=id,
            path=path,
            caller="a batch" if key is None else key.name,
            key=key,
            cache_salt=owner if self._keys.salts else "",
            background=True,
        )

        async def asked(scope: Scope, receive: Receive, send: Send) -> None:
            await self.app({**scope, SCOPE_KEY: exchange}, receive, send)

        transport = httpx.ASGITransport(asked)
        async with httpx.AsyncClient(transport=transport, base_url="http://batch", timeout=None) as client:
            answer = await client.post(path, content=body, headers=HEADERS)
        return Reply(id, answer.status_code, answer.content)
