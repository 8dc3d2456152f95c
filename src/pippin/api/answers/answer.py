"""The answer to one request body, from the start of its runs to the line in the log.

`Answer` reads the runs of a body to their end and passes their events to an encoder; `Runs` are these runs, started
together and read as one stream; `RunningAnswers` opens answers within the server's limits and finds them by id.
"""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final
from uuid import uuid4

import msgspec

from pippin import __version__
from pippin.api.access.exchange import Exchange
from pippin.api.access.limits import Limits
from pippin.api.dialects.base import RunInfo, StreamEncoder
from pippin.api.http.body import LargeWork, Presence, drawn_bytes
from pippin.api.telemetry.observer import Observer, RequestObserver
from pippin.config.options.server import ServerOptions
from pippin.core.completion import Completion, collect
from pippin.core.errors import ErrorReport, FieldName, ServerError, renamed
from pippin.core.events import (
    Accepted,
    Ending,
    Event,
    Failed,
    Finished,
    PartDelta,
    Restarted,
    Timings,
)
from pippin.core.models import ModelInfo, ModelKind, ModelState
from pippin.core.tasks import CountTokens, Generate, Task
from pippin.service import Requests
from pippin.service.service import AnyRun, Starter


def load_words(states: list[ModelState], model: str) -> str:
    """What the load of a model is doing, as words to follow "The model"; empty if the model is not loading."""
    state = next((each for each in states if each.id == model), None)
    if state is None or state.stage is None:
        return ""
    match state.stage:
        case "waiting":
            return "waits until other models are done"
        case "weights" if state.progress is not None and state.progress[1]:
            done, total, _ = state.progress
            return f"has loaded {done * 100 // total} % of its weights"
        case "weights":
            return "loads its weights"
        case _:
            return "is starting"


def load_comment(states: list[ModelState], model: str) -> bytes:
    """A server-sent comment on the progress of a model's load; empty if the model is not loading."""
    doing = load_words(states, model)
    return f": the model {doing}\n\n".encode() if doing else b""


GONE: Final = ErrorReport(kind="cancelled", message="The client left before the answer was complete.")


def drawn(encoder: StreamEncoder, events: Sequence[Event], request: int) -> bytes:
    """The encoded bytes of these events, which belong to the body's request number `request`."""
    return b"".join([encoder.event(event, request) for event in events])


async def run_info(
    service: Requests, model: str, exchange: Exchange, kind: ModelKind | None = None
) -> RunInfo:
    """What encoders are told of the answer to a request of this kind for `model`.

    The answer's id is made here even if the client sent a request id, because a client may use its own twice.
    Raises `ServerError` for a model that the caller's key does not open, before anything is loaded or downloaded.
    """
    known = True
    try:
        info = await service.find(model, kind)
    except ServerError:
        info, known = ModelInfo(id=model, kind="language"), False  # `start` refuses or downloads it
    check_model(exchange, model, info if known else None)
    return RunInfo(
        id=exchange.id if exchange.own_id else uuid4().hex,
        created=int(time.time()),
        model=info.id,
        fingerprint=fingerprint(info),
        known=known,
    )


def check_model(exchange: Exchange, name: str, info: ModelInfo | None) -> None:
    """Raise `ServerError` if the caller's key does not open the model; `info` is None for one that is not here."""
    names, kind = ((name,), None) if info is None else ((name, info.id), info.kind)
    if exchange.key is not None and not exchange.key.rights.allows_model(names, kind):
        raise ServerError("permission", f"This API key does not open the model {name!r}.", "model")


def fingerprint(info: ModelInfo) -> str:
    """OpenAI's `system_fingerprint`: differs for each version of Pippin and each way in which a model runs."""
    facts = (__version__, info.id, info.path, info.quantization, info.dtype, info.context_window)
    return "fp_" + hashlib.blake2s(repr(facts).encode(), digest_size=5).hexdigest()


def names_of(task: Task) -> tuple[FieldName, ...]:
    """What the client's API calls the fields of a task."""
    return task.request.names if isinstance(task, Generate | CountTokens) else ()


class Runs:
    """The runs of one body, read as one stream of events. `aclose` cancels those that still run."""

    def __init__(self, runs: Sequence[AnyRun], tasks: Sequence[Task]) -> None:
        self._runs = list(runs)
        self._names = list(map(names_of, tasks))
        self._pending: dict[asyncio.Task[list[Event]], int] = {}
        self._open = set(range(len(self._runs)))

    @property
    def accepted(self) -> list[Accepted]:
        return [run.accepted or Accepted(prompt_tokens=0) for run in self._runs]

    async def take(self) -> tuple[int, list[Event]]:
        """The number of a run, and its next events; no events once all runs have ended."""
        number, events = await self._take()
        if events and isinstance(failed := events[-1], Failed):
            report = renamed(failed.error, self._names[number])
            events = [*events[:-1], msgspec.structs.replace(failed, error=report)]
        return number, events

    async def _take(self) -> tuple[int, list[Event]]:
        if len(self._runs) == 1:
            return 0, await self._runs[0].take()
        while self._open:
            waiting = set(self._pending.values())
            for number in self._open - waiting:
                self._pending[asyncio.create_task(self._runs[number].take())] = number
            done, _ = await asyncio.wait(self._pending, return_when=asyncio.FIRST_COMPLETED)
            task = done.pop()
            number = self._pending.pop(task)
            events = task.result()
            if events:
                return number, events
            self._open.discard(number)
        return 0, []

    def hold_back(self) -> None:
        """`Run.hold_back` for all runs."""
        for run in self._runs:
            run.hold_back()

    def fail(self, report: ErrorReport) -> None:
        """End all runs from outside; their reader gets the error."""
        for run in self._runs:
            run.fail(report)

    async def aclose(self) -> None:
        for task in self._pending:
            task.cancel()
        for run in self._runs:
            await run.aclose()


async def start_runs(
    service: Starter, tasks: Sequence[Task], *, model: str, ids: Sequence[str], client: str | None
) -> Runs:
    """Start the runs of all tasks, or none. Raises the first `ServerError`, in the words of the client's API."""

    async def start(task: Task, task_id: str) -> AnyRun:
        try:
            return await service.start(task, model=model, id=task_id, client=client)
        except ServerError as error:
            raise ServerError.of(renamed(error.report, names_of(task))) from error

    if len(tasks) == 1:
        return Runs([await start(tasks[0], ids[0])], tasks)
    starting = [asyncio.create_task(start(task, task_id)) for task, task_id in zip(tasks, ids, strict=True)]
    try:
        return Runs(await asyncio.gather(*starting), tasks)
    except BaseException:
        for task in starting:
            task.cancel()
        for outcome in await asyncio.gather(*starting, return_exceptions=True):
            if not isinstance(outcome, BaseException):
                await outcome.aclose()
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The ids and the owner of an answer. `ids` are those of the runs, `id` is the answer's, and `exchange_id` is the
    request's, which a client may choose. `model`: the client's name for the model; `served`: the server's name."""

    id: str
    exchange_id: str
    ids: Sequence[str]
    model: str
    served: str
    owner: str
    client: str | None


class Answer:
    """One body being answered. Whoever makes an answer must close it, which cancels what still runs."""

    def __init__(
        self,
        service: Starter,
        tasks: Sequence[Task],
        identity: Identity,
        *,
        presence: Presence,
        observer: RequestObserver,
        timeout: float | None,
        on_close: "Callable[[Answer], None]",
    ) -> None:
        """`timeout`: seconds from now until the request is ended with an error."""
        self.id, self.exchange_id = identity.id, identity.exchange_id
        self.ids = identity.ids
        self.owner = identity.owner
        self.served = identity.served
        self.cached_tokens = 0
        self._generates = isinstance(tasks[0], Generate)
        self._prompts: dict[int, int] = {}  # tokens, of each request
        self._completed: dict[tuple[int, int], int] = {}  # tokens so far, of each choice of each request
        self.start_ms: float | None = None  # until acceptance: model load and prompt preparation
        self.timings: Timings | None = None  # of the choice that ended last
        self.failure: ErrorReport | None = None
        self._presence = presence
        self._observer = observer
        self._on_close = on_close
        self._runs: Runs | None = None
        self._opened = asyncio.get_running_loop().time()
        self._closed = False
        self._starting = asyncio.create_task(
            start_runs(service, tasks, model=identity.model, ids=identity.ids, client=identity.client),
            name=f"start {identity.ids[0]}",
        )
        presence.on_gone(lambda: self.end(GONE))
        self._timer: asyncio.TimerHandle | None = None
        if timeout is not None:
            late = ErrorReport(kind="timeout", message=f"The request took longer than {timeout:g} seconds.")
            self._timer = asyncio.get_running_loop().call_later(timeout, self.end, late)

    @property
    def gone(self) -> bool:
        """Whether the client hung up."""
        return self.failure is GONE

    @property
    def prompt_tokens(self) -> int:
        return sum(self._prompts.values())

    @property
    def completion_tokens(self) -> int:
        """Completion tokens so far: a client that hangs up before the end has used them too."""
        return sum(self._completed.values())

    def end(self, report: ErrorReport) -> None:
        """End the answer from outside, for the reason in `report`."""
        if self.failure is None:
            self.failure = report
        if self._runs is not None:
            self._runs.fail(report)
        else:
            self._starting.cancel()

    async def started(self, within: float | None = None) -> bool:
        """Wait until all runs are accepted; False if that takes longer than `within` seconds. Raises the `ServerError`
        of a refusal."""
        if self._runs is not None:
            return True
        await asyncio.wait({self._starting}, timeout=within)
        if not self._starting.done():
            return False
        if self._starting.cancelled():
            raise self._fail(self.failure or GONE)
        try:
            self._runs = self._starting.result()
        except ServerError as error:
            raise self._fail(error.report) from None
        self.start_ms = (asyncio.get_running_loop().time() - self._opened) * 1000
        if self._generates:
            self._prompts = {number: each.prompt_tokens for number, each in enumerate(self._runs.accepted)}
        self._observer.accepted(self._runs.accepted)
        if self.failure is not None:  # ended in the same turn of the loop
            self._runs.fail(self.failure)
        return True

    async def whole(self, draw: Callable[[list[Completion]], bytes], large: LargeWork) -> bytes:
        """The completions of all runs, encoded by `draw`. Raises `ServerError` if a run fails."""
        await self.started()
        assert self._runs is not None
        self._runs.hold_back()
        gathered: list[list[Event]] = [[accepted] for accepted in self._runs.accepted]
        async for request, events in self._batches(self._runs):
            if isinstance(failed := events[-1], Failed):
                raise ServerError.of(failed.error)
            for event in events:
                if isinstance(event, Restarted):
                    del gathered[request][1:]
                else:
                    gathered[request].append(event)

        def whole() -> bytes:
            data = draw([collect(events) for events in gathered])
            gathered.clear()  # freeing many objects takes time too
            return data

        return await large.do(sum(map(drawn_bytes, gathered)), whole)

    async def events(self) -> list[Event]:
        """All events of a single run of any kind. Raises `ServerError` if it fails."""
        collected: list[Event] = []
        async for events in self.batches():
            collected += events
        return collected

    async def batches(self) -> AsyncIterator[list[Event]]:
        """The events of a single run of any kind as they come. Raises `ServerError` if it fails."""
        await self.started()
        assert self._runs is not None
        async for _, events in self._batches(self._runs):
            failed = events.pop() if isinstance(events[-1], Failed) else None
            if events:
                yield events
            if isinstance(failed, Failed):
                raise ServerError.of(failed.error)

    async def pieces(
        self,
        encoder: StreamEncoder,
        silence: float,
        large: LargeWork,
        progress: Callable[[], bytes] = lambda: b"",
    ) -> AsyncIterator[bytes]:
        """The encoded stream, with a keep-alive after each `silence` seconds without a byte.

        `progress` returns a comment on a start that takes long.
        """
        try:
            while not await self.started(within=silence):
                harmless = encoder.keep_alive()
                yield harmless + progress() if harmless.startswith(b":") else harmless
        except ServerError as error:
            yield encoder.failed(error.report) + encoder.end()
            return
        runs = self._runs
        assert runs is not None
        yield encoder.start(runs.accepted)
        clock = asyncio.get_running_loop().time
        sent = clock()
        while True:
            try:
                async with asyncio.timeout_at(sent + silence):
                    request, events = await runs.take()
            except TimeoutError:
                sent = clock()
                yield encoder.keep_alive()
                continue
            if not events:
                break
            self._note(request, events)
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
        try:
            if self._runs is None:
                self._starting.cancel()
                [outcome] = await asyncio.gather(self._starting, return_exceptions=True)
                self._runs = outcome if isinstance(outcome, Runs) else None
            if self._runs is not None:
                await self._runs.aclose()
        finally:  # the closing task may be cancelled, and limits count this answer until `on_close`
            self._observer.closed()
            self._on_close(self)

    async def _batches(self, runs: Runs) -> AsyncIterator[tuple[int, list[Event]]]:
        while True:
            request, events = await runs.take()
            if not events:
                return
            self._note(request, events)
            yield request, events

    def _note(self, request: int, events: list[Event]) -> None:
        self._observer.events(events)
        for event in events:
            if isinstance(event, PartDelta):
                self._completed[request, event.choice] = event.completed
            elif isinstance(event, Finished):
                self._completed[request, event.choice] = event.usage.completion_tokens
                self.timings = event.timings
                if event.choice == 0:
                    self._prompts[request] = event.usage.prompt_tokens
                    self.cached_tokens += event.usage.cached_tokens
            elif isinstance(event, Failed):
                self._fail(event.error)
            elif isinstance(event, Ending) and event.used_tokens:
                self._prompts[request] = event.used_tokens

    def _fail(self, report: ErrorReport) -> ServerError:
        self.failure = self.failure or report
        self._observer.failed(report.kind)
        return ServerError.of(self.failure)


UNKNOWN: Final = "unknown"
"""The observed model of all requests for unknown names, of which there may be any number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What an answer runs: the tasks of one request, for a model."""

    name: str  # of the endpoint, as metrics have it
    tasks: Sequence[Task]
    run: RunInfo
    starter: Starter
    stream: bool
    timeout: float | None = None  # seconds that the request allows


class RunningAnswers:
    """Opens answers within the limits of the server, ends them by id, and notes how each ended for the access log."""

    def __init__(self, options: ServerOptions, observer: Observer, limits: Limits) -> None:
        self._options = options
        self._observer = observer
        self._limits = limits
        self._active: dict[str, Answer] = {}
        self.live = 0  # answers that run now, without lines of batches
        self.answered = 0
        self.prompt_tokens = self.completion_tokens = 0  # of all answers that have ended

    def adopt(self, options: ServerOptions) -> None:
        """Apply changed options to new answers."""
        self._options = options

    async def open(self, exchange: Exchange, operation: Operation, presence: Presence) -> Answer:
        """Start an operation's tasks. Whoever opens an answer must close it. Raises `ServerError`."""
        self._limits.enter()
        run, tasks = operation.run, operation.tasks
        stem = run.id if exchange.own_id else f"{exchange.id}.{run.id[:8]}"  # found in the worker's log
        ids = [stem] if len(tasks) == 1 else [f"{stem}-{number}" for number in range(len(tasks))]
        limit = min(filter(None, (operation.timeout, self._options.timeout)), default=None)
        model = tasks[0].request.model if isinstance(tasks[0], Generate) else run.model
        identity = Identity(
            id=run.id,
            exchange_id=exchange.id,
            ids=ids,
            model=model,
            served=run.model,
            owner=exchange.owner,
            client=exchange.caller or None,
        )
        answer = Answer(
            operation.starter,
            tasks,
            identity,
            presence=presence,
            observer=self._observer.request(
                operation.name, run.model if run.known else UNKNOWN, stream=operation.stream
            ),
            timeout=limit,
            on_close=partial(self._forget, exchange, run),
        )
        self._active[run.id] = answer
        self.live += not exchange.background
        return answer

    def _forget(self, exchange: Exchange, run: RunInfo, answer: Answer) -> None:
        self.answered += 1
        self.live -= not exchange.background
        self.prompt_tokens += answer.prompt_tokens
        self.completion_tokens += answer.completion_tokens
        self._limits.leave(exchange, answer.prompt_tokens + answer.completion_tokens)
        if self._active.get(run.id) is answer:
            del self._active[run.id]
        exchange.gone = answer.gone
        exchange.facts = {
            "model": run.model,
            "prompt": answer.prompt_tokens,
            "cached": answer.cached_tokens,
            "completion": answer.completion_tokens,
        }
        if answer.start_ms is not None:
            exchange.facts["start"] = round(answer.start_ms)
        if (times := answer.timings) is not None:
            exchange.facts |= {name: round(ms) for name, ms in msgspec.structs.asdict(times).items()}
        if answer.failure is not None and not answer.gone:
            exchange.facts["error"] = answer.failure.kind

    def may_see(self, exchange: Exchange, id: str) -> bool:
        """Whether a caller may know of the run that a worker knows by `id`."""
        if exchange.manages:
            return True
        own = [
            each for answer in self._active.values() if exchange.may_see(answer.owner) for each in answer.ids
        ]
        return any(
            id == each or id.startswith(f"{each}.") for each in own
        )  # later rounds of tools have a suffix

    async def cancel(self, name: str, exchange: Exchange) -> bool:
        """Cancel an answer by its own id or that of its exchange; False if the caller has no such answer running."""
        named = (answer for answer in self._active.values() if name in (answer.id, answer.exchange_id))
        answer = next((each for each in named if exchange.may_see(each.owner)), None)
        if answer is None:
            return False
        answer.end(ErrorReport(kind="cancelled", message="The request was cancelled."))
        return True
