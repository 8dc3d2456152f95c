"""The answer to one request, from the start of its runs to the line in the log.

An `Operation` is what is asked of a model. An `Answer` starts the runs of an operation, reads their events to the end
and encodes them; nothing else begins work. `RunningAnswers` are those of the server, found and ended by id.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from pippin.api.access.exchange import Exchange, exchange_of
from pippin.api.access.guards import Limits
from pippin.api.dialects.base import Encoder, RunInfo, StreamEncoder
from pippin.api.dialects.shared.frames import EVENTS
from pippin.api.http.body import EventStream, LargeWork, Presence, WatchedPresence, drawn_bytes
from pippin.config.options.server import ServerOptions
from pippin.core.completion import collect
from pippin.core.errors import ErrorKind, ErrorReport, ServerError, renamed
from pippin.core.events import Accepted, Ending, Event, Failed, Finished, PartDelta, Restarted, Timings
from pippin.core.models import ModelState
from pippin.core.tasks import CountTokens, Generate, Task
from pippin.service.service import AnyRun, Service, Start

log = logging.getLogger(__name__)


class RequestObserver:
    """Is told of one request's life, in order; `closed` is always the last call. This one counts nothing."""

    def accepted(self, accepted: Sequence[Accepted]) -> None:
        pass

    def events(self, events: Sequence[Event]) -> None:
        """Events have come: all those of one wake-up of the event loop."""

    def failed(self, kind: ErrorKind) -> None:
        pass

    def closed(self) -> None:
        pass


class Observer:
    """Is told of all requests; this one counts nothing."""

    def request(self, operation: str, model: str, *, stream: bool) -> RequestObserver:
        """A request begins; `operation` names the dialect or the endpoint: `chat_completions`, `rerank`."""
        return RequestObserver()

    def http(self, method: str, path: str, status: int, seconds: float) -> None:
        """An HTTP exchange ended."""


class Used(Struct, kw_only=True):
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of the prompt tokens
    completion_tokens: int = 0
    forced_tokens: int = 0  # of the completion tokens, by grammars
    accepted_tokens: int = 0  # of the completion tokens, which speculation proposed
    seconds: float = 0.0  # from the start of each answer to its end

    def add(self, other: "Used") -> None:
        for name in FIGURES:
            setattr(self, name, getattr(self, name) + getattr(other, name))


FIGURES: Final = Used.__struct_fields__

Row = tuple[str, str]
"""The name of a key, empty for callers without one, and a model."""


Usage = defaultdict[Row, Used]
"""What each key has used of each model."""


GONE: Final = ErrorReport(kind="cancelled", message="The client left before the answer was complete.")


def drawn(encoder: StreamEncoder, events: Sequence[Event], request: int) -> bytes:
    """The encoded bytes of these events, which belong to the body's request number `request`."""
    return b"".join([encoder.event(event, request) for event in events])


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What one request asks of a model. Nothing of it runs yet."""

    name: str  # of the endpoint, as metrics have it
    model: str  # its name, as it is looked up once more when the tasks start
    tasks: Sequence[Task]
    start: Start
    run: RunInfo
    encoder: Any = None  # of the dialect's own type; None if whoever asks reads the events
    media: str = EVENTS  # type of a stream
    stream: bool = False
    timeout: float | None = None  # seconds that the request allows
    warnings: tuple[str, ...] = ()  # of the body, which the first answer shows

    @property
    def generates(self) -> bool:
        return isinstance(self.tasks[0], Generate)

    def in_its_words(self, report: ErrorReport, number: int) -> ErrorReport:
        """A report of a task with what the client's API calls the task's fields."""
        task = self.tasks[number]
        return renamed(report, task.request.names) if isinstance(task, Generate | CountTokens) else report


async def start_runs(operation: Operation, ids: Sequence[str], account: str) -> list[AnyRun]:
    """Start the runs of all tasks, or none. Raises the first `ServerError`, in the words of the client's API.

    Not a method: an exception would keep the frames of this function, and thereby the answer that keeps the exception.
    """
    starts = [
        operation.start(task, model=operation.model, id=own, account=account)
        for task, own in zip(operation.tasks, ids, strict=True)
    ]
    several: list[asyncio.Task[AnyRun]] = []
    try:
        if len(starts) == 1:
            return [await starts[0]]
        several = [asyncio.create_task(each) for each in starts]
        return await asyncio.gather(*several)
    except BaseException as error:
        for each in several:
            each.cancel()
        outcomes = await asyncio.gather(*several, return_exceptions=True)
        for outcome in outcomes:
            if not isinstance(outcome, BaseException):
                await outcome.aclose()
        if isinstance(error, ServerError):
            number = outcomes.index(error) if several else 0
            raise ServerError.of(operation.in_its_words(error.report, number)) from None
        raise


class Answer:
    """One operation being answered. Whoever makes an answer must close it, which cancels what still runs."""

    def __init__(
        self, operation: Operation, exchange: Exchange, presence: Presence, among: "RunningAnswers"
    ) -> None:
        """Starts the operation's tasks. `presence` tells when the client hangs up. Raises `ServerError` if too many
        answers run."""
        run = operation.run
        self.operation = operation
        self.exchange = exchange
        self.id = run.id
        stem = run.id if exchange.own_id else f"{exchange.id}.{run.id[:8]}"  # found in the worker's log
        count = len(operation.tasks)
        self.ids = [stem] if count == 1 else [f"{stem}-{number}" for number in range(count)]
        self.used = Used(requests=1)  # tokens of choices that have ended
        self._prompts: dict[int, int] = {}  # tokens, of each request
        self._completed: dict[tuple[int, int], int] = {}  # tokens so far, of each choice of each request
        self._warnings: dict[int, tuple[str, ...]] = {}  # of prompts; the first choice of each shows them
        self.start_ms: float | None = None  # until acceptance: model load and prompt preparation
        self.timings: Timings | None = None  # of the choice that ended last
        self.failure: ErrorReport | None = None
        self._presence = presence
        self._among = among
        self._runs: list[AnyRun] = []  # none until all are accepted
        self._open: set[int] = set()  # runs that have not ended, if there are several
        self._reading: dict[asyncio.Task[list[Event]], int] = {}
        self._closed = False
        self._observer = among.add(self)
        loop = asyncio.get_running_loop()
        self.began = loop.time()
        self._starting = asyncio.create_task(
            start_runs(operation, self.ids, exchange.account), name=f"start {self.ids[0]}"
        )
        presence.on_gone(lambda: self.end(GONE))
        self._timer: asyncio.TimerHandle | None = None
        limits = filter(None, (operation.timeout, among.options.timeout))
        if (timeout := min(limits, default=None)) is not None:
            late = ErrorReport(kind="timeout", message=f"The request took longer than {timeout:g} seconds.")
            self._timer = loop.call_later(timeout, self.end, late)

    @property
    def prompt_tokens(self) -> int:
        return sum(self._prompts.values())

    @property
    def completion_tokens(self) -> int:
        """Completion tokens so far: a client that hangs up before the end has used them too."""
        return sum(self._completed.values())

    @property
    def accepted(self) -> list[Accepted]:
        """What the worker said when it accepted each run."""
        return [run.accepted or Accepted(prompt_tokens=0) for run in self._runs]

    def end(self, report: ErrorReport) -> None:
        """End the answer from outside, for the reason in `report`."""
        if self.failure is None:
            self.failure = report
        if not self._runs:
            self._starting.cancel()
        for run in self._runs:
            run.fail(report)

    async def started(self, within: float | None = None) -> bool:
        """Wait until all runs are accepted; False if that takes longer than `within` seconds. Raises the `ServerError`
        of a refusal."""
        if self._runs:
            return True
        await asyncio.wait({self._starting}, timeout=within)
        if not self._starting.done():
            return False
        if self._starting.cancelled():
            raise self._fail(self.failure or GONE)
        # Not caught: it would keep this frame, and the answer, which keeps the exception: a cycle with the body in it.
        if isinstance(error := self._starting.exception(), ServerError):
            raise self._fail(error.report)
        self._runs = self._starting.result()
        self._open = set(range(len(self._runs)))
        self.start_ms = (asyncio.get_running_loop().time() - self.began) * 1000
        if self.operation.generates:
            self._prompts = {number: each.prompt_tokens for number, each in enumerate(self.accepted)}
        self._observer.accepted(self.accepted)
        for number, each in enumerate(self.accepted):
            for warning in each.warnings:
                log.warning("%s id=%s", warning, self.ids[number])
            if each.warnings:
                self._warnings[number] = each.warnings
        if self.operation.warnings:
            self._warnings[0] = self.operation.warnings + self._warnings.get(0, ())
        if self.failure is not None:  # ended in the same turn of the loop
            self.end(self.failure)
        return True

    async def whole(self) -> bytes:
        """The encoded completions of all runs. Raises `ServerError` if a run fails."""
        gathered = await self.gathered()
        encoder: Encoder = self.operation.encoder

        def whole() -> bytes:
            data = encoder.whole([collect(events) for events in gathered])
            gathered.clear()  # freeing many objects takes time too
            return data

        return await self._among.large.do(sum(map(drawn_bytes, gathered)), whole)

    async def pieces(self) -> AsyncIterator[bytes]:
        """The encoded stream, with a keep-alive after some seconds without a byte."""
        encoder: StreamEncoder = self.operation.encoder
        silence, large = self._among.options.keepalive_interval, self._among.large
        try:
            while not await self.started(within=silence):
                harmless = encoder.keep_alive()
                yield harmless + self._among.progress(self) if harmless.startswith(b":") else harmless
        except ServerError as error:
            yield encoder.failed(error.report) + encoder.end()
            return
        yield encoder.start(self.accepted)
        clock = asyncio.get_running_loop().time
        sent = clock()
        while True:
            try:
                async with asyncio.timeout_at(sent + silence):
                    request, events = await self._take()
            except TimeoutError:
                sent = clock()
                yield encoder.keep_alive()
                continue
            if not events:
                break
            failed = events.pop() if isinstance(events[-1], Failed) else None
            data = await large.do(drawn_bytes(events), drawn, encoder, events, request)
            if isinstance(failed, Failed):
                yield data + encoder.failed(failed.error)
                break
            if data:
                sent = clock()
                yield data
        self._presence.stop()  # uvicorn reports the end of the reply as a disconnect of the client
        yield encoder.end()

    async def close(self) -> None:
        """Cancel what still runs and release everything; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._presence.stop()
        if self._timer is not None:
            self._timer.cancel()
        for task in self._reading:
            task.cancel()
        try:
            if not self._runs:
                self._starting.cancel()
                [outcome] = await asyncio.gather(self._starting, return_exceptions=True)
                self._runs = outcome if isinstance(outcome, list) else []
            for run in self._runs:
                await run.aclose()
        finally:  # the closing task may be cancelled, and limits count this answer until it is removed
            self._observer.closed()
            self._among.remove(self)

    async def gathered(self) -> list[list[Event]]:
        """All events of each run. Raises `ServerError` if one fails."""
        await self.started()
        for run in self._runs:
            run.hold_back()
        gathered: list[list[Event]] = [[] for _ in self._runs]
        while (taken := await self._take())[1]:
            request, events = taken
            for event in events:
                match event:
                    case Failed(error):
                        raise ServerError.of(error)
                    case Restarted():
                        gathered[request].clear()
                    case _:
                        gathered[request].append(event)
        return gathered

    async def _take(self) -> tuple[int, list[Event]]:
        """The number of a run, and its next events; no events once all runs have ended."""
        number, events = (0, await self._runs[0].take()) if len(self._runs) == 1 else await self._take_any()
        if events and isinstance(failed := events[-1], Failed):
            report = self.operation.in_its_words(failed.error, number)
            events = [*events[:-1], msgspec.structs.replace(failed, error=report)]
        if warnings := self._warnings.get(number):
            events = [
                msgspec.structs.replace(event, warnings=warnings + event.warnings)
                if isinstance(event, Finished) and event.choice == 0
                else event
                for event in events
            ]
        self._note(number, events)
        return number, events

    async def _take_any(self) -> tuple[int, list[Event]]:
        """Take the next events of whichever of several runs has some; see `_take`."""
        while self._open:
            for number in self._open - set(self._reading.values()):
                self._reading[asyncio.create_task(self._runs[number].take())] = number
            done, _ = await asyncio.wait(self._reading, return_when=asyncio.FIRST_COMPLETED)
            task = done.pop()
            number = self._reading.pop(task)
            events = task.result()
            if events:
                return number, events
            self._open.discard(number)
        return 0, []

    def _note(self, request: int, events: list[Event]) -> None:
        self._observer.events(events)
        for event in events:
            if isinstance(event, PartDelta):
                self._completed[request, event.choice] = event.completed
            elif isinstance(event, Finished):
                self._completed[request, event.choice] = event.usage.completion_tokens
                self.timings = event.timings
                self.used.forced_tokens += event.usage.forced_tokens
                self.used.accepted_tokens += event.usage.accepted_tokens
                if event.choice == 0:
                    self._prompts[request] = event.usage.prompt_tokens
                    self.used.cached_tokens += event.usage.cached_tokens
            elif isinstance(event, Failed):
                self._fail(event.error)
            elif isinstance(event, Ending) and event.used_tokens:
                self._prompts[request] = event.used_tokens

    def _fail(self, report: ErrorReport) -> ServerError:
        self.failure = self.failure or report
        self._observer.failed(report.kind)
        return ServerError.of(self.failure)


def observed_model(run: RunInfo) -> str:
    """The model as it is counted: one for all requests for unknown names, of which there may be any number."""
    return run.model if run.known else "unknown"


async def begun(answer: Answer) -> AsyncIterator[bytes]:
    """The pieces of an answer, once there is data to send. Raises `ServerError` for a failure before that.

    If the encoder's `keep_alive` is empty (its format has no filler), this may take until the first events come.
    """
    pieces = answer.pieces()
    first = b""
    while not first and (piece := await anext(pieces, None)) is not None:
        first = piece
    if answer.failure is not None:
        raise ServerError.of(answer.failure)

    async def all_of_them() -> AsyncIterator[bytes]:
        yield first
        async for piece in pieces:
            yield piece

    return all_of_them()


class RunningAnswers:
    """The answers that run in this server, within its limits. Each is found by id, and ends with a line in the log."""

    def __init__(self, service: Service, options: ServerOptions, observer: Observer, limits: Limits) -> None:
        self._service = service
        self.options = options
        self._observer = observer
        self._limits = limits
        self._active: dict[str, Answer] = {}
        self.large = LargeWork()
        self.live = 0  # answers that run now, without lines of batches
        self.total = Used()  # of all answers that have ended
        self.usage = Usage(Used)  # the same, until it is written down

    def adopt(self, options: ServerOptions) -> None:
        """Apply changed options to new answers."""
        self.options = options

    async def reply(
        self,
        request: Request,
        operation: Operation,
        save: Callable[[], Awaitable[None]] | None = None,
    ) -> Response:
        """Run an operation and reply, whole or as a stream. Raises `ServerError` for a failure before the first byte.

        `save` is awaited before each piece of a stream, and before a whole reply.
        """
        answer = Answer(operation, exchange_of(request.scope), WatchedPresence(request.receive), self)
        try:
            if not operation.stream:
                whole = await answer.whole()
                if save is not None:
                    await save()
                await answer.close()
                return Response(whole, media_type="application/json")
            if operation.generates:
                await answer.started(within=self.options.keepalive_interval)
                pieces = answer.pieces()
            else:
                pieces = await begun(answer)
        except BaseException:
            await answer.close()
            raise
        # A stream of server-sent events reports its failure itself; any other is cut short.
        cut = operation.media != EVENTS and not operation.generates
        return EventStream(
            pieces,
            operation.media,
            before=save,
            leave=answer.close,
            cut=lambda: cut and answer.failure is not None,
        )

    def progress(self, answer: Answer) -> bytes:
        """A server-sent comment on the load of the answer's model; empty if the model is not loading."""
        state = next(
            (each for each in self._service.pool.states() if each.id == answer.operation.run.model), None
        )
        match state:
            case None | ModelState(stage=None):
                return b""
            case ModelState(stage="waiting"):
                doing = "waits until other models are done"
            case ModelState(stage="weights", progress=(int(done), int(total), _)) if total:
                doing = f"has loaded {done * 100 // total} % of its weights"
            case ModelState(stage="weights"):
                doing = "loads its weights"
            case _:
                doing = "is starting"
        return f": the model {doing}\n\n".encode()

    def add(self, answer: Answer) -> RequestObserver:
        """Count an answer as running; `remove` ends that. Raises `ServerError` if too many run."""
        self._limits.enter()
        operation = answer.operation
        self._active[answer.id] = answer
        self.live += not answer.exchange.background
        return self._observer.request(operation.name, observed_model(operation.run), stream=operation.stream)

    def remove(self, answer: Answer) -> None:
        """Count an answer as one that has ended, and note how for the access log."""
        exchange, used = answer.exchange, answer.used
        self.live -= not exchange.background
        used.prompt_tokens, used.completion_tokens = answer.prompt_tokens, answer.completion_tokens
        used.seconds = asyncio.get_running_loop().time() - answer.began
        self._limits.leave(exchange, used.prompt_tokens + used.completion_tokens)
        self.total.add(used)
        key = "" if exchange.key is None else exchange.key.name
        self.usage[key, observed_model(answer.operation.run)].add(used)
        if self._active.get(answer.id) is answer:
            del self._active[answer.id]
        exchange.gone = answer.failure is GONE
        exchange.facts = {
            "model": answer.operation.run.model,
            "prompt": used.prompt_tokens,
            "cached": used.cached_tokens,
            "completion": used.completion_tokens,
        }
        if answer.start_ms is not None:
            exchange.facts["start"] = round(answer.start_ms)
        if (times := answer.timings) is not None:
            exchange.facts |= {name: round(ms) for name, ms in msgspec.structs.asdict(times).items()}
        if answer.failure is not None and not exchange.gone:
            exchange.facts["error"] = answer.failure.kind

    def may_see(self, exchange: Exchange, id: str) -> bool:
        """Whether a caller may know of the run that a worker knows by `id`."""
        if exchange.manages:
            return True
        own = [
            each
            for answer in self._active.values()
            if exchange.may_see(answer.exchange.owner)
            for each in answer.ids
        ]
        # Later rounds of tools have a suffix.
        return any(id == each or id.startswith(f"{each}.") for each in own)

    async def cancel(self, name: str, exchange: Exchange) -> bool:
        """Cancel an answer by its own id or that of its exchange; False if the caller has no such answer running."""
        named = (answer for answer in self._active.values() if name in (answer.id, answer.exchange.id))
        answer = next((each for each in named if exchange.may_see(each.exchange.owner)), None)
        if answer is None:
            return False
        answer.end(ErrorReport(kind="cancelled", message="The request was cancelled."))
        return True
