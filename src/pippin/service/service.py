"""Requests in, runs out: names, defaults and limits on the way to a worker, and an orderly end for all."""

import asyncio
import logging
from collections.abc import Iterable
from functools import partial
from typing import Final

import msgspec

from pippin.config.options.model import ModelOptions
from pippin.config.options.server import ServerOptions
from pippin.core.errors import ErrorReport, ServerError
from pippin.core.models import ModelInfo, ModelKind
from pippin.core.requests import GenerationRequest
from pippin.core.tasks import CountTokens, Generate, RenderTemplate, Task
from pippin.runtime.pool.pool import Lease, Pool, memory_budget
from pippin.runtime.pool.source import Estimate, ModelSource
from pippin.service.awake import Awake, keeping_awake
from pippin.service.defaults import with_defaults, with_manner
from pippin.service.names import Names
from pippin.service.run import Run, widened
from pippin.service.summaries import with_summary

log = logging.getLogger(__name__)

NAMED: Final = 5  # models in the refusal of a task for another kind
LAST_WORDS: Final = 1.0  # seconds for readers to pass on that their run was ended
WORKERS_LEAVE: Final = 5.0  # seconds for idle workers' background writes


class Service:
    """Starts tasks on leased models, and ends all in order when the server stops."""

    def __init__(
        self, options: ServerOptions, catalog: ModelSource, pool: Pool, awake: Awake | None = None
    ) -> None:
        """`awake` keeps the machine from going to sleep; nothing does without it."""
        self.catalog = catalog
        self.pool = pool
        self._options = options
        self._names = Names(options, catalog, pool)
        self._awake = awake or Awake(None)
        self._runs: dict[str, Run] = {}
        self._starting: dict[str, asyncio.Task[Run]] = {}
        self._downloads: dict[str, asyncio.Task[ModelInfo]] = {}
        self._ended = asyncio.Event()  # set and replaced whenever a run or a start ends
        self._closing = False

    async def start(self, task: Task, *, model: str, id: str, client: str | None = None) -> Run:
        """Begin a task; returns once it is accepted, which may take as long as a load.

        `id` must be unique among the requests that run; `client` names who asks, for the log. Raises `ServerError`
        for all that deserves a status code.
        """
        self._check_start(id)
        log.debug("Request %s of %s for model %r.", id, client or "a client", model)
        start = asyncio.create_task(self._start(task, model, id), name=f"start {id}")
        self._starting[id] = start
        self._awake.working()
        try:
            return await start
        except asyncio.CancelledError:
            if start.cancelled() and not _being_cancelled():
                raise ServerError("cancelled", "The request was cancelled.") from None
            if start.done() and not start.cancelled() and start.exception() is None:
                await start.result().aclose()  # accepted in the very moment in which the caller left
            raise
        finally:
            del self._starting[id]
            self._tell()

    async def adopt(self, options: ServerOptions) -> None:
        """Take over changed options, for what comes from now on."""
        self._options = options
        self._names.adopt(options)
        self.catalog.adopt(options)
        await self.pool.adopt(options)

    def models(self) -> list[ModelInfo]:
        """Every model that there is, as its worker describes it where it is loaded, else as the catalog does."""
        return [self.pool.info(info.id) or info for info in self.catalog.models()]

    def missing(self) -> list[ModelInfo]:
        """The models that the operator named and that are still to be downloaded."""
        return self.catalog.missing()

    async def find(self, name: str, kind: ModelKind | None = None) -> ModelInfo:
        """What is known of the model that a name means to a request of this kind, as `Names` says.

        Raises `ServerError("model_not_found")`.
        """
        return await self._names.find(name, kind)

    async def cancel(self, id: str) -> bool:
        """End a request by its id, whoever reads it: a generation keeps what it has said. False if there is none."""
        if id in self._starting:
            self._starting[id].cancel()
            return True
        if id in self._runs:
            self._runs[id].cut()
            return True
        return False

    @property
    def active(self) -> int:
        """How many requests run or wait to."""
        return len(self._runs) + len(self._starting)

    async def close(self, deadline: float) -> None:
        """Take no more requests, let those that run finish within `deadline` seconds, then end all workers.

        A second call with a shorter deadline hastens the first.
        """
        self._closing = True
        if not await self._until_idle(deadline):
            report = ErrorReport(kind="overloaded", message="The server is shutting down.", retry_after=10.0)
            for start in self._starting.values():
                start.cancel()
            for run in list(self._runs.values()):
                run.fail(report)
            await self._until_idle(LAST_WORDS)
        await self.pool.close(min(deadline, WORKERS_LEAVE))
        await self._awake.close()

    async def _start(self, task: Task, model: str, id: str) -> Run:
        if isinstance(task, Generate):
            self._check_choices(task.request)
        seconds = self._time_limit(task)
        begun = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(seconds):
                info = await self._found(model, task.model_kind)
                if not suits(task, info):
                    raise wrong_kind(task, info, await asyncio.to_thread(self.models))
                run = await self._begin(task, info, id)
        except TimeoutError:
            message = f"The request was not accepted within its time limit of {seconds} seconds."
            raise ServerError("timeout", message) from None
        if seconds is not None:
            run.limit(max(0.0, begun + seconds - asyncio.get_running_loop().time()))
        return run

    async def _found(self, asked: str, kind: ModelKind | None) -> ModelInfo:
        """As `find`; a missing model is downloaded where that is allowed, once for all who ask."""
        try:
            return await self.find(asked, kind)
        except ServerError as error:
            if error.report.kind != "model_not_found":
                raise
        name = await asyncio.to_thread(self._names.meant, asked, kind)
        if name not in self._downloads:
            log.debug("Looking for the model %r elsewhere.", name)
            download = asyncio.create_task(self.catalog.ensure(name, partial(_log_download, name)))
            self._downloads[name] = download
            download.add_done_callback(partial(self._downloaded, name))
        return await asyncio.shield(self._downloads[name])

    def _downloaded(self, name: str, download: asyncio.Task[ModelInfo]) -> None:
        del self._downloads[name]
        if not download.cancelled():
            download.exception()  # read here: all who asked may have left

    async def _begin(self, task: Task, info: ModelInfo, id: str) -> Run:
        if self.pool.info(info.id) is None:
            await self.catalog.complete(info, partial(_log_download, info.id))
        lease = await self.pool.lease(info)
        try:
            if not isinstance(task, Generate):
                return await self._submit(lease, _shown_as_it_is(task, lease.options), id, None)
            return await self._generate(lease, task.request, id)
        except BaseException:
            lease.release()
            raise

    async def _generate(self, lease: Lease, asked: GenerationRequest, id: str) -> Run:
        request = with_defaults(asked, lease.options, lease.worker.info)
        summarize = request.overflow == "summarize" and asked.messages is not None
        if summarize:
            request = msgspec.structs.replace(request, overflow="error")
        try:
            return await self._submit(lease, Generate(widened(request)), id, asked)
        except ServerError as error:
            if not summarize or error.report.kind != "context_length_exceeded":
                raise
        run, dropped = await with_summary(
            request,
            lambda part: self._ask(lease, part, id),
            lambda shorter: self._submit(lease, Generate(widened(shorter)), id, asked),
        )
        if run.accepted is not None:
            run.accepted = msgspec.structs.replace(run.accepted, dropped_messages=dropped)
        return run

    async def _ask(self, lease: Lease, request: GenerationRequest, id: str) -> str:
        """The text of the answer to a request of Pippin's own, run on a lease that is held."""
        own = f"{id}.summary"
        mailbox = lease.worker.submit(
            own, Generate(with_defaults(request, lease.options, lease.worker.info)), 1
        )
        run = Run(own, lease, mailbox, request, on_close=lambda run: None)
        try:
            return (await run.collect()).choices[0].text("text")
        finally:
            lease.worker.cancel(own)

    async def _submit(self, lease: Lease, task: Task, id: str, asked: GenerationRequest | None) -> Run:
        choices = task.request.n if isinstance(task, Generate) else 0
        run = Run(id, lease, lease.worker.submit(id, task, choices), asked, self._forget)
        try:
            await run.accept()
        except BaseException:
            lease.worker.cancel(id)
            raise
        self._runs[id] = run
        return run

    def _forget(self, run: Run) -> None:
        del self._runs[run.id]
        self._tell()

    def _tell(self) -> None:
        self._ended.set()
        self._ended = asyncio.Event()
        if not self.active:
            self._awake.resting()

    async def _until_idle(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                while self.active:
                    await self._ended.wait()
        except TimeoutError:
            return False
        return True

    def _check_start(self, id: str) -> None:
        if self._closing:
            raise ServerError("overloaded", "The server is shutting down.", retry_after=10.0)
        if id in self._runs or id in self._starting:
            raise ServerError("conflict", f"A request with the id {id!r} is running already.")

    def _check_choices(self, request: GenerationRequest) -> None:
        most = self._options.max_choices
        for name, count in (("n", request.n), ("best_of", request.best_of or 1)):
            if not 1 <= count <= most:
                message = (
                    f"`{name}` is {count}; it must be from 1 to {most}, the most that this server gives."
                )
                raise ServerError("invalid_request", message, name, code="invalid_value")
        if request.best_of is not None and request.best_of < request.n:
            message = f"`best_of` is {request.best_of}; it must not be below `n`, which is {request.n}."
            raise ServerError("invalid_request", message, "best_of", code="invalid_value")

    def _time_limit(self, task: Task) -> float | None:
        own = task.request.timeout if isinstance(task, Generate) else None
        limits = [limit for limit in (own, self._options.timeout) if limit is not None]
        return min(limits, default=None)


def open_service(options: ServerOptions, catalog: ModelSource, estimate: Estimate) -> Service:
    """A service over real worker processes. `estimate` is the catalog's `footprint`."""
    pool = Pool(options, catalog, estimate, memory_budget(options))
    return Service(options, catalog, pool, keeping_awake(wanted=options.prevent_sleep))


def suits(task: Task, info: ModelInfo) -> bool:
    """Whether the model is of the kind that a task is for. Scripted models stand in for every kind."""
    return info.kind == "scripted" or task.model_kind in (None, info.kind)


def wrong_kind(task: Task, info: ModelInfo, others: Iterable[ModelInfo]) -> ServerError:
    """The refusal of a task that does not suit the model; it names those of `others` that would do."""
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


def _shown_as_it_is(task: Task, options: ModelOptions) -> Task:
    """The task with the model's defaults, for tasks that show a conversation and must not shorten it."""
    match task:
        case CountTokens(request):
            return CountTokens(msgspec.structs.replace(with_manner(request, options), overflow="error"))
        case RenderTemplate(request):
            return RenderTemplate(msgspec.structs.replace(with_manner(request, options), overflow="error"))
        case _:
            return task


def _being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
