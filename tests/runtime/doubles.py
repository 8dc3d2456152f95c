"""Workers that are no processes, and a clock whose hands a test turns."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pippin.config.options.server import ServerOptions
from pippin.core.errors import ErrorReport, ServerError
from pippin.core.events import Accepted
from pippin.core.models import EngineStats, ModelInfo, WorkerSpec
from pippin.core.tasks import Task
from pippin.runtime.pool import Clock, Pool
from pippin.runtime.workers.link import Mailbox
from tests.service.doubles import MIB, StaticCatalog, scripted


async def settle() -> None:
    """Let everything that can go on go on."""
    for _ in range(50):
        await asyncio.sleep(0)


@dataclass
class TestTimer:
    __test__ = False
    due: float
    callback: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


class TestClock(Clock):
    __test__ = False

    def __init__(self) -> None:
        self._now = 1000.0
        self._timers: list[TestTimer] = []

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._now + 1e9

    def call_later(self, seconds: float, callback: Callable[[], None]) -> TestTimer:
        timer = TestTimer(self._now + seconds, callback)
        self._timers.append(timer)
        return timer

    async def advance(self, seconds: float) -> None:
        """Turn the hands, stopping at every timer on the way."""
        await settle()
        end = self._now + seconds
        while True:
            pending = [timer for timer in self._timers if not timer.cancelled and timer.due <= end]
            if not pending:
                break
            timer = min(pending, key=lambda each: each.due)
            self._timers.remove(timer)
            self._now = max(self._now, timer.due)
            timer.callback()
            await settle()
        self._now = end
        await settle()


class FakeWorker:
    def __init__(self, spec: WorkerSpec, footprint: int, hold: bool) -> None:
        loop = asyncio.get_running_loop()
        self.spec = spec
        self.info = spec.info
        self.pid: int | None = 4711
        self.footprint = 0
        self.final_footprint = footprint
        self.progress: tuple[int, int, str] | None = None
        self.prompt_ready: asyncio.Future[None] = loop.create_future()
        self.weights_ready: asyncio.Future[None] = loop.create_future()
        self.died: asyncio.Future[ErrorReport] = loop.create_future()
        self.hold = hold  # each stage waits for the test
        self.may_load = False
        self.memory_bytes: int | None = None
        self.may_stop = asyncio.Event()
        self.may_stop.set()
        self.mailboxes: dict[str, Mailbox] = {}
        self.cancelled: list[str] = []
        self.changes: list[dict[str, Any]] = []
        self.cleared = 0
        self.stop_deadline: float | None = None

    @property
    def requests(self) -> "FakeWorker":
        return self

    def load_weights(self, memory_bytes: int | None) -> None:
        assert not self.may_load
        self.may_load, self.memory_bytes = True, memory_bytes
        if not self.hold:
            self.finish_load()

    def finish_load(self) -> None:
        """Go as far as it may."""
        self.hold = False
        if not self.prompt_ready.done():
            self.prompt_ready.set_result(None)
        if self.may_load and not self.weights_ready.done():
            self.footprint = self.final_footprint
            self.weights_ready.set_result(None)

    def fail_load(self, message: str) -> None:
        for stage in (self.prompt_ready, self.weights_ready):
            if not stage.done():
                stage.set_exception(ServerError("load_failed", message))
                stage.exception()

    def die(self) -> None:
        report = ErrorReport(kind="worker_died", message="The process died: it was ended by signal 9. Next.")
        for stage in (self.prompt_ready, self.weights_ready):
            if not stage.done():
                stage.set_exception(ServerError.of(report))
                stage.exception()
        self.fail_all(report)
        self.died.set_result(report)

    def submit(self, id: str, task: Task, mailbox: Mailbox) -> None:
        self.mailboxes[id] = mailbox
        mailbox.put(Accepted(7))

    def cancel(self, id: str) -> None:
        if self.mailboxes.pop(id, None) is not None:
            self.cancelled.append(id)

    def fail_all(self, error: ErrorReport) -> None:
        for mailbox in self.mailboxes.values():
            mailbox.fail(error)
        self.mailboxes.clear()

    def clear_cache(self, *, prefixes_only: bool, disk: bool) -> None:
        self.cleared += 1

    def reconfigure(self, options: dict[str, object]) -> None:
        self.changes.append(options)

    async def stats(self) -> EngineStats:
        return EngineStats(steps=1)

    async def stop(self, deadline: float) -> None:
        self.stop_deadline = deadline
        await self.may_stop.wait()
        if not self.died.done():
            self.die()


@dataclass
class FakeLauncher:
    """Workers load at once, unless `hold` is set."""

    hold: bool = False
    fail_with: str | None = None
    footprints: dict[str, int] = field(default_factory=dict)
    launched: list[FakeWorker] = field(default_factory=list)

    async def __call__(self, spec: WorkerSpec) -> FakeWorker:
        await asyncio.sleep(0)
        worker = FakeWorker(spec, self.footprints.get(spec.info.id, 100 * MIB), self.hold)
        self.launched.append(worker)
        if self.fail_with is not None:
            worker.fail_load(self.fail_with)
        elif not self.hold:
            worker.finish_load()
        return worker

    def last(self, model: str) -> FakeWorker:
        return next(worker for worker in reversed(self.launched) if worker.info.id == model)

    @property
    def names(self) -> list[str]:
        return [worker.info.id for worker in self.launched]


class Stage:
    """A pool over fake workers, 250 MiB of memory, and models `a`, `b`, `c` of 100 MiB each."""

    def __init__(self, memory: int = 250 * MIB, catalog: StaticCatalog | None = None, **options: Any) -> None:
        self.clock = TestClock()
        self.launcher = FakeLauncher()
        self.infos: dict[str, ModelInfo] = {name: scripted(name) for name in "abc"}
        self.catalog = catalog or StaticCatalog(*self.infos.values())
        self.options = ServerOptions(**options)
        self.pool = Pool(
            self.options, self.catalog, self.catalog.footprint, memory, self.launcher, self.clock
        )

    def lease(self, name: str, account: str = "") -> "asyncio.Task[Any]":
        return asyncio.create_task(self.pool.lease(self.catalog.resolve(name), account))

    async def use(self, name: str) -> None:
        """Load a model and let go of it."""
        lease = await self.lease(name)
        await settle()
        lease.release()
        await settle()

    def state(self, name: str) -> str:
        return {state.id: state.state for state in self.pool.states()}.get(name, "unloaded")

    @property
    def loaded(self) -> str:
        return "".join(sorted(state.id for state in self.pool.states() if state.state == "loaded"))
