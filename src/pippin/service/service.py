"""Starts requests on leased models: names, defaults and limits on the way in, and an orderly end for all.

A `Run` is one request that a worker has accepted: it delivers the events, picks the best choices and gives the lease
back at the end. `Service` starts runs, and ends them all on shutdown.
"""

import asyncio
import hashlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import Any, Final, Literal, Protocol

import msgspec
from msgspec import Struct

from pippin.catalog import Catalog, footprint
from pippin.config.accelerator import told_budget
from pippin.config.options.model import ModelOptions
from pippin.config.options.server import ServerOptions
from pippin.core import parameters as p
from pippin.core.completion import Completion, collect
from pippin.core.errors import SHUTTING_DOWN, ErrorReport, ServerError
from pippin.core.events import Accepted, Event, Failed, Restarted
from pippin.core.models import ModelInfo, ModelKind
from pippin.core.requests import GenerationRequest, Sampling, Thinking
from pippin.core.tasks import CountTokens, Generate, RenderTemplate, Task
from pippin.runtime.pool import Changes, Clock, Lease, Pool
from pippin.runtime.workers.link import LOST, Mailbox
from pippin.runtime.workers.process import Child
from pippin.service.summaries import with_summary

log = logging.getLogger(__name__)


DEFAULT: Final = "default"
CLAUDE: Final = "claude-"
# Names that Anthropic's programs know. Claude Desktop refuses others, even `claude-qwen`.
CLAUDE_NAMES: Final = tuple(
    (
        "claude-opus-5 claude-sonnet-5 claude-haiku-4-5 claude-fable-5 claude-sonnet-4-6 claude-sonnet-4-5 "
        "claude-opus-4-5 claude-opus-4-1"
    ).split()
)
VENDORS: Final = ("gemini-", "jev-")


class Names:
    """Resolves names in requests. Without a `kind` the language model is meant.

    Three sorts of names belong to no model. `default`, or no name, means the model of the kind that the request needs.
    So does a `claude-*`, `gemini-*` or `jev-*` name that no model here has, nor is listed with, because the vendors'
    own agents and clients ask for several of these. So does any unknown name, if the operator allows that.
    """

    def __init__(self, options: ServerOptions, catalog: Catalog, pool: Pool) -> None:
        self._catalog = catalog
        self._pool = pool
        self.adopt(options)

    def adopt(self, options: ServerOptions) -> None:
        """Resolve by changed options from now on."""
        self._options = options
        self._listed = [(entry.called, entry.kind) for entry in options.models if entry.listed]
        self._ids: dict[str, str] = {}  # of models that the operator named, filled on first lookup

    async def find(self, name: str, kind: ModelKind | None = None) -> ModelInfo:
        """The model's info, from its worker if it is loaded; a lookup that needs the disk runs in a thread. Raises
        `ServerError`."""
        loaded = self._served_and_loaded(kind or "language") if name == DEFAULT else self._pool.info(name)
        return loaded if loaded is not None else await asyncio.to_thread(self._look_up, name, kind)

    def _look_up(self, name: str, kind: ModelKind | None) -> ModelInfo:
        """What `find` finds, by the disk."""
        meant = self.meant(name, kind)
        info = self._catalog.resolve(meant)
        if name == DEFAULT:
            self._ids[meant] = info.id
        return self._pool.info(info.id) or info

    def meant(self, name: str, kind: ModelKind | None = None) -> str:
        """The catalog's name for the model, which may not be downloaded yet.

        Raises `ServerError("model_not_found")` where `default` resolves to nothing.
        """
        if name == DEFAULT:
            return self._default(kind or "language")
        if name.startswith(CLAUDE) and not self._catalog.knows(name):
            listed = self.claude_names().get(name)
            return listed.id if listed else self._options.claude_model or self._default(kind or "language")
        if name.startswith(VENDORS) and not self._catalog.knows(name):
            return self._default(kind or "language")
        if self._options.any_model_name and not self._catalog.knows(name):
            served = self._served(kind or "language")
            return served[0] if len(served) == 1 else name
        return name

    def claude_names(self) -> dict[str, ModelInfo]:
        """The language models here under Anthropic's names, the operator's first; none unless the operator wants them
        listed. Reads the disk."""
        if not self._options.list_claude_names:
            return {}
        found = [info for info in self._catalog.models() if info.kind in ("language", "scripted")]
        return {
            name: self._pool.info(info.id) or info for name, info in zip(CLAUDE_NAMES, found, strict=False)
        }

    def _default(self, kind: ModelKind) -> str:
        """The first served model, else the one loaded last, else the only one: of this kind, else of any kind.

        A model of another kind is better than none: its refusal names the models that would do.
        """
        for wanted in (kind, None):
            served = self._served(wanted)
            name = served[0] if served else self._pool.last_loaded(wanted) or self._only(wanted)
            if name is not None:
                return name
        message = "No model is loaded yet, and none is served by default. Name one of those of /v1/models."
        raise ServerError("model_not_found", message, "model")

    def _served_and_loaded(self, kind: ModelKind) -> ModelInfo | None:
        """The model that `default` means, if that can be decided without the disk: the first served model of the kind
        is loaded, and the kinds of all entries before it are known."""
        for name, given in self._listed:
            info = self._pool.info(self._ids.get(name, name))
            known = given or (None if info is None else info.kind)
            if known is None or known in (kind, "scripted"):
                return info
        return None

    def _served(self, kind: ModelKind | None) -> list[str]:
        """The names of the models that the operator named, of this kind if one is given."""
        return [
            name
            for name, given in self._listed
            if kind is None or (given or self._kind(name)) in (kind, "scripted")
        ]

    def _kind(self, name: str) -> str:
        """The kind of a model that the operator named without one. One that is not here yet is taken for a language
        model."""
        info = self._pool.info(name)
        try:
            return (info or self._catalog.resolve(name)).kind
        except ServerError:
            return "language"

    def _only(self, kind: ModelKind | None) -> str | None:
        found = [
            info.id for info in self._catalog.models() if kind is None or info.kind in (kind, "scripted")
        ]
        return found[0] if len(found) == 1 else None


Origin = Literal["request", "model option", "server option", "checkpoint", "profile", "Pippin"]

PIPPIN: Final = Sampling(temperature=1.0)
"""Defaults where nobody sets a value, as the APIs document them. What is still unset is off."""

OPTION_OF: Final = {each.name: each.public_name for each in p.PARAMETERS}
"""The options with which operators set sampling defaults, by parameter name."""


class Setting(Struct, frozen=True):
    """A value and who set it, as `pippin show` prints it."""

    name: str
    value: Any
    origin: Origin


def explain_sampling(
    request: Sampling, options: ModelOptions, server: ModelOptions, info: ModelInfo
) -> list[Setting]:
    """Every sampling parameter that somebody set. `options` are the model's merged options, `server` the server's
    defaults."""
    settings = []
    for name in Sampling.__struct_fields__:
        option = getattr(options, OPTION_OF.get(name, name), None)
        inherited = option == getattr(server, OPTION_OF.get(name, name), None)
        candidates: tuple[tuple[Any, Origin], ...] = (
            (getattr(request, name), "request"),
            (option, "server option" if inherited else "model option"),
            (getattr(info.sampling, name), "checkpoint"),
            (getattr(options.fallbacks, name), "profile"),
            (getattr(PIPPIN, name), "Pippin"),
        )
        for value, origin in candidates:
            if value is not None:
                settings.append(Setting(name, value, origin))
                break
    return settings


def merge_sampling(request: Sampling, options: ModelOptions, info: ModelInfo) -> Sampling:
    settings = explain_sampling(request, options, options, info)
    return Sampling(**{setting.name: setting.value for setting in settings})


def with_manner(request: GenerationRequest, options: ModelOptions) -> GenerationRequest:
    """The request with the model's defaults for thinking, overflow and loops where it sets none."""
    asked = request.thinking
    enabled = options.enable_thinking if asked.enabled is None else asked.enabled
    if enabled is None and asked.off_by_default:
        enabled = False
    thinking = Thinking(
        enabled=enabled,
        budget=options.thinking_budget if asked.budget is None else asked.budget,
        effort=asked.effort,
        start_marker=asked.start_marker or options.thinking_start_token,
        end_marker=asked.end_marker or options.thinking_end_token,
    )
    return msgspec.structs.replace(
        request,
        thinking=thinking,
        overflow=request.overflow or options.overflow,
        loop_guard=request.loop_guard or options.loop_guard,
    )


def with_defaults(request: GenerationRequest, options: ModelOptions, info: ModelInfo) -> GenerationRequest:
    """The request as the engine gets it. Raises `ServerError` if it asks for more new tokens than are allowed."""
    most = options.max_request_tokens
    asked = request.max_tokens
    if most is not None and asked is not None and asked > most and not request.cut_max_tokens:
        message = f"max_tokens is {asked}, but this server allows at most {most}."
        raise ServerError("invalid_request", message, "max_tokens")
    wished = options.max_tokens if asked is None else asked
    limits = [limit for limit in (wished, most) if limit is not None]
    return msgspec.structs.replace(
        with_manner(request, options),
        sampling=merge_sampling(request.sampling, options, info),
        max_tokens=min(limits, default=None),
    )


def completed(task: Task, options: ModelOptions, info: ModelInfo) -> Task:
    """The task with the model's defaults. Tasks that only render a conversation must not shorten it. Raises
    `ServerError`."""
    match task:
        case Generate(request):
            return Generate(with_defaults(request, options, info))
        case CountTokens(request) | RenderTemplate(request):
            whole = msgspec.structs.replace(with_manner(request, options), overflow="error")
            return msgspec.structs.replace(task, request=whole)
        case _:
            return task


def repeatable(task: Task) -> Task:
    """The task with a seed, by which another run of it gives the same answer."""
    if not isinstance(task, Generate) or task.request.sampling.seed is not None:
        return task
    sampling = msgspec.structs.replace(task.request.sampling, seed=secrets.randbits(63))
    return Generate(msgspec.structs.replace(task.request, sampling=sampling))


class AnyRun(Protocol):
    """The interface that an answer needs from a run, or from several runs in a row."""

    accepted: Accepted | None

    async def take(self) -> list[Event]: ...

    def hold_back(self) -> None: ...

    def fail(self, error: ErrorReport) -> None: ...

    async def aclose(self) -> None: ...


class Start(Protocol):
    """`Service.start`, and whatever starts tasks as it does."""

    async def __call__(self, task: Task, *, model: str, id: str, account: str = "") -> AnyRun: ...


MOST_LOSSES: Final = 2
"""Times that a request is lost with its worker without having come further. If it was alone there, the last one was its
own fault; else it runs again while no other such request does, and one more loss is its own fault."""
MOST_KILLS: Final = 10
"""The same where workers were killed from outside: then the model can't serve."""
LOOK_EVERY: Final = 0.05  # seconds


class Run:
    """A request that its worker has accepted. The only way to cancel it is to leave it: `aclose`.

    If its worker is lost, the request runs again on the model's next one, as far as `Mailbox` allows.
    """

    def __init__(
        self,
        id: str,
        lease: Lease,
        on_close: Callable[["Run"], None],
        *,
        resumes: bool = False,
        on_fault: Callable[[ErrorReport], None] = lambda _: None,
    ) -> None:
        """`resumes`: a stream goes on where its worker was lost. `on_fault`: called with the last report if the request
        is what ends workers."""
        self.id = id
        self.accepted: Accepted | None = None
        self._lease = lease
        self._task: Task
        self._mailbox: Mailbox
        self._resumes = resumes
        self._on_fault = on_fault
        self._again: asyncio.Task[None] | None = None  # sends the request to the next worker
        self._losses = self._kills = 0  # of workers, since the answer came further; `_kills` from outside
        self._reached = -1
        self._on_close = on_close
        self._closed = False

    async def take(self) -> list[Event]:
        """All events since the last call, waiting for at least one; empty after the end.

        The first ones come after `Accepted`. The last one is terminal (a generation's is the last `Finished`). `Failed`
        is a terminal event too, never raised. A slow reader gets adjacent deltas merged.
        """
        return await self._mailbox.take()

    def hold_back(self) -> None:
        """Promise that no event is shown before the end. The request may then start over if its worker is lost, which
        `Restarted` reports."""
        self._mailbox.held_back = True

    async def collect(self) -> Completion:
        """The whole answer of a generation. Raises `ServerError` if it fails."""
        self.hold_back()
        events: list[Event] = []
        while more := await self.take():
            events = more if Restarted() in more else events + more
        return collect(events)

    async def aclose(self) -> None:
        """Release the lease and cancel whatever still runs in the worker."""
        if self._closed:
            return
        self._closed = True
        self._drop()
        self._mailbox.leave()
        self._lease.release(self._task.request.keep_alive if isinstance(self._task, Generate) else None)
        self._on_close(self)

    # Called by the service

    async def begin(self, task: Task) -> None:
        """Send the task to the worker, and wait for its first event: raise a refusal, keep `Accepted`, leave the rest
        to the reader. May be called again after a refusal."""
        self._task = repeatable(task)
        choices = task.request.n if isinstance(task, Generate) else 0
        self._mailbox = Mailbox(choices, on_overflow=self._drop, on_lost=self._lost, resumes=self._resumes)
        try:
            try:
                self._lease.worker.requests.submit(self.id, self._task, self._mailbox)
            except ServerError as refusal:
                if refusal.report.kind != LOST:
                    raise
                self._again = asyncio.create_task(self._begin_again(), name=f"run {self.id} again")
            match await self._mailbox.first():
                case Failed(report):
                    raise ServerError.of(report)
                case Accepted() as accepted:
                    self.accepted = accepted
        except BaseException:
            self._drop()
            self._mailbox.leave()
            raise

    def fail(self, error: ErrorReport) -> None:
        """Fail the run from outside."""
        self._drop()
        self._mailbox.end(error)

    def _drop(self) -> None:
        """Let no worker go on with the task."""
        if self._again is not None:
            self._again.cancel()
        self._lease.worker.requests.cancel(self.id)

    def _lost(self, error: ErrorReport) -> bool:
        """The worker is lost: send the task to the next one. False if the task itself is what ends workers."""
        ready, reached = self._lease.worker.weights_ready, self._mailbox.reached
        if ready.done() and ready.exception() is None:  # else it was killed while it loaded
            if reached > self._reached:
                self._losses = self._kills = 0
            if reached > max(0, self._reached):  # it served, so that it is in no crash loop
                self._lease.slot.deaths.clear()
            self._losses += not error.blameless
            self._kills += error.blameless
            if not error.blameless and self._losses + (self._lease.slot.claims == 1) > MOST_LOSSES:
                self._on_fault(error)
                return False
            if self._kills > MOST_KILLS:
                return False
        self._reached = max(reached, self._reached)
        if self._again is not None:
            self._again.cancel()
        log.info("Request %s runs again: %s", self.id, error.message)
        said = self._mailbox.record.text
        if said and isinstance(self._task, Generate):  # a prediction of what it says makes it faster
            self._task = Generate(msgspec.structs.replace(self._task.request, prediction=said))
        self._again = asyncio.create_task(self._begin_again(), name=f"run {self.id} again")
        return True

    async def _begin_again(self) -> None:
        suspect = self._losses == MOST_LOSSES
        self._lease.worker.requests.cancel(self.id)
        try:
            async with self._lease.slot.suspects if suspect else nullcontext():
                await self._send_to_next()
                # A signal from the mailbox would cost every token of every answer something.
                while suspect and not self._mailbox.complete and self._mailbox.reached <= self._reached:  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_EVERY)
        except ServerError as error:
            self._mailbox.end(error.report)

    async def _send_to_next(self) -> None:
        """Hand the task to the model's next worker that lives. Raises `ServerError`."""
        while True:
            await self._lease.renew()
            try:
                self._lease.worker.requests.submit(self.id, self._task, self._mailbox)
                return
            except ServerError as error:
                if error.report.kind != LOST:
                    raise
            await asyncio.sleep(LOOK_EVERY)


QUARANTINE: Final = 600.0  # seconds
MOST_QUARANTINED: Final = 256


class Quarantine:
    """The requests that have ended workers. Each is refused for some minutes, so that a client which sends it again and
    again does not take the model from others."""

    def __init__(self) -> None:
        self._until: dict[bytes, tuple[float, str]] = {}  # and how the last worker ended

    def add(self, model: str, task: Task, error: ErrorReport) -> None:
        while len(self._until) >= MOST_QUARANTINED:
            del self._until[next(iter(self._until))]
        self._until[_digest(model, task)] = time.monotonic() + QUARANTINE, error.message

    def check(self, model: str, task: Task) -> None:
        """Raises `ServerError` for a request that must not run now."""
        if not self._until:
            return
        until, how = self._until.get(_digest(model, task), (0.0, ""))
        if (left := until - time.monotonic()) > 0:
            message = (
                f"This request has ended the process of {model!r} each time that it ran; change it. {how}"
            )
            raise ServerError(LOST, message, retry_after=left)


def _digest(model: str, task: Task) -> bytes:
    return hashlib.blake2b(msgspec.msgpack.encode((model, task)), digest_size=16).digest()


NAMED: Final = 5  # models listed in the refusal of a task for another kind
LAST_WORDS: Final = 1.0  # seconds for readers to report that their run was ended
WORKERS_LEAVE: Final = 5.0  # seconds for idle workers' background writes
NOW: Final = 0.0  # a time on the loop's clock that has passed: requests that wait to start end at once


class Service:
    """Starts tasks on models of the pool, and ends all in order when the server stops."""

    def __init__(self, options: ServerOptions, catalog: Catalog, pool: Pool) -> None:
        self.catalog = catalog
        self.pool = pool
        self._options = options
        self.names = Names(options, catalog, pool)
        self._runs: dict[str, Run] = {}
        self._starting: dict[str, asyncio.Timeout] = {}
        self._downloads: dict[str, asyncio.Task[ModelInfo]] = {}
        self._quarantine = Quarantine()
        self._clock = Clock()
        self._changes = Changes(self._clock)  # told whenever a run or a start ends
        self._closing = False

    async def start(self, task: Task, *, model: str, id: str, account: str = "") -> Run:
        """Start a task; returns once it is accepted, which may take as long as a load.

        `id` must be unique among running requests; the model's places are shared out among `account`s. Raises
        `ServerError` for every failure that deserves a status code.
        """
        if isinstance(task, Generate):
            task = Generate(msgspec.structs.replace(task.request, account=account))
        self._quarantine.check(model, task)
        async with self._starts(task, id):
            log.debug("Request %s of %s for model %r.", id, account or "a client", model)
            lease = await self._leased(task, model, account)
            run = Run(
                id,
                lease,
                self._forget,
                resumes=self._options.resume_streams,
                on_fault=partial(self._quarantine.add, model, task),
            )
            try:
                task = completed(task, lease.slot.options, lease.worker.info)
                if isinstance(task, Generate) and task.request.overflow == "summarize":
                    await self._begin_summarized(run, lease, task.request)
                else:
                    await run.begin(task)
            except BaseException:
                lease.release()
                raise
            self._runs[id] = run
        return run

    async def adopt(self, options: ServerOptions) -> None:
        """Apply changed options from now on."""
        self._options = options
        self.names.adopt(options)
        self.catalog.adopt(options)
        await self.pool.adopt(options)

    def models(self) -> list[ModelInfo]:
        """Every known model, as its worker describes it if loaded, else as the catalog does."""
        return [self.pool.info(info.id) or info for info in self.catalog.models()]

    @property
    def active(self) -> int:
        """Number of requests that run or wait to start."""
        return len(self._runs) + len(self._starting)

    def end_all(self) -> None:
        """Take no more requests, and fail those that run or wait; their readers get the error."""
        self._closing = True
        for limit in self._starting.values():
            if not limit.expired():
                limit.reschedule(NOW)
        for run in list(self._runs.values()):
            run.fail(SHUTTING_DOWN)

    async def close(self, deadline: float) -> None:
        """Take no more requests, let running ones finish within `deadline` seconds, then end all workers.

        A second call with a shorter deadline ends the first one sooner.
        """
        self._closing = True
        if not await self._until_idle(deadline):
            self.end_all()
            await self._until_idle(LAST_WORDS)
        await self.pool.close(min(deadline, WORKERS_LEAVE))

    @asynccontextmanager
    async def _starts(self, task: Task, id: str) -> AsyncIterator[None]:
        """Count a request as one that waits to start. `end_all` makes it fail. Raises `ServerError`."""
        if self._closing:
            raise ServerError.of(SHUTTING_DOWN)
        if id in self._runs or id in self._starting:
            raise ServerError("conflict", f"A request with the id {id!r} is running already.")
        most = self._options.max_choices
        if isinstance(task, Generate) and not 1 <= task.request.n <= most:
            message = (
                f"`n` is {task.request.n}; it must be from 1 to {most}, the most that this server gives."
            )
            raise ServerError("invalid_request", message, "n", code="invalid_value")
        try:
            async with asyncio.timeout(None) as self._starting[id]:
                yield
        except TimeoutError:
            if not self._starting[id].expired():
                raise
            raise ServerError.of(SHUTTING_DOWN) from None
        finally:
            del self._starting[id]
            self._changes.tell()

    async def _leased(self, task: Task, model: str, account: str) -> Lease:
        """A lease of the model that is meant. Raises `ServerError`."""
        info = await self._found(model, task.model_kind)
        if not suits(task, info):
            raise wrong_kind(task, info, await asyncio.to_thread(self.models))
        if self.pool.info(info.id) is None:
            await self.catalog.complete(info, partial(_log_download, info.id))
        return await self.pool.lease(info, account)

    async def _found(self, asked: str, kind: ModelKind | None) -> ModelInfo:
        """Find the model, or download a missing one where that is allowed, once for all callers."""
        try:
            return await self.names.find(asked, kind)
        except ServerError as error:
            if error.report.kind != "model_not_found":
                raise
        return await self.fetch(await asyncio.to_thread(self.names.meant, asked, kind))

    async def fetch(self, name: str) -> ModelInfo:
        """Download a missing model if requests may trigger that, once for all callers. Raises `ServerError`."""
        if name not in self._downloads:
            log.debug("Looking for the model %r elsewhere.", name)
            download = asyncio.create_task(self.catalog.ensure(name, partial(_log_download, name)))
            self._downloads[name] = download
            download.add_done_callback(partial(self._downloaded, name))
        return await asyncio.shield(self._downloads[name])

    def _downloaded(self, name: str, download: asyncio.Task[ModelInfo]) -> None:
        del self._downloads[name]
        if not download.cancelled():
            download.exception()  # mark it retrieved: every caller may have left

    async def _begin_summarized(self, run: Run, lease: Lease, asked: GenerationRequest) -> None:
        """Begin a generation; if its conversation is too long, with a summary of the older messages."""
        request = msgspec.structs.replace(asked, overflow="error")
        try:
            await run.begin(Generate(request))
        except ServerError as error:
            if error.report.kind != "context_length_exceeded" or asked.messages is None:
                raise
        else:
            return
        await with_summary(
            request,
            lambda part: self._ask(lease, part, f"{run.id}.summary"),
            lambda shorter: run.begin(Generate(shorter)),
        )

    async def _ask(self, lease: Lease, request: GenerationRequest, id: str) -> str:
        """Run a request of Pippin's own on a held lease, and return the answer's text."""
        run = Run(id, lease, on_close=lambda run: None)
        await run.begin(Generate(with_defaults(request, lease.slot.options, lease.worker.info)))
        try:
            return (await run.collect()).choices[0].text("text")
        finally:
            lease.worker.requests.cancel(id)

    def _forget(self, run: Run) -> None:
        del self._runs[run.id]
        self._changes.tell()

    async def _until_idle(self, seconds: float) -> bool:
        return await self._changes.until(lambda: not self.active, self._clock.now() + seconds)


def open_service(options: ServerOptions, catalog: Catalog, waiting: list[Child]) -> Service:
    """A service over real worker processes, of which those that are `waiting` for a model are used first."""
    pool = Pool(options, catalog, footprint, told_budget(options), waiting=waiting)
    return Service(options, catalog, pool)


def suits(task: Task, info: ModelInfo) -> bool:
    """Whether the model is of the kind that a task needs. Scripted models stand in for every kind."""
    return info.kind in ("scripted", task.model_kind)


def wrong_kind(task: Task, info: ModelInfo, others: Iterable[ModelInfo]) -> ServerError:
    """The refusal of a task that does not suit the model; it lists those of `others` that would."""
    able = [other.id for other in others if other.kind == task.model_kind][:NAMED]
    hint = (
        f"Name one that can: {', '.join(able)}."
        if able
        else f"None that can is here; serve one of kind {task.model_kind}."
    )
    message = f"The model {info.id!r} is of kind {info.kind} and can't {task.verb}. {hint}"
    return ServerError("unsupported", message, "model")


def _log_download(name: str, done: int, total: int, message: str) -> None:
    log.debug("Downloading %r: %d of %d, %s.", name, done, total, message)
