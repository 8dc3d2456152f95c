"""State shared by the parts of the pool: a slot for each model, a clock that tests can set, and waiting for changes.

A slot holds the state of one model, its claims, and its history of failures.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from msgspec.structs import replace

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ErrorReport, ServerError
from pippin.core.models import LoadState, ModelInfo, ModelState
from pippin.runtime.pool.eviction import Resident
from pippin.runtime.workers.worker import Worker


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    def now(self) -> float:
        """Monotonic seconds."""
        ...

    def wall(self) -> float:
        """Seconds since the epoch."""
        ...

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer: ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(seconds, callback)


class Changes:
    """Lets tasks wait until something in the pool changes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: set[asyncio.Future[None]] = set()

    def tell(self) -> None:
        """Wake all waiters to check their condition again."""
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()

    async def until(self, true: Callable[[], bool], seconds: float | None = None) -> bool:
        """Wait until `true()` holds, checking it after each change; False if `seconds` pass first."""
        deadline = None if seconds is None else self._clock.now() + seconds
        while not true():
            left = None if deadline is None else deadline - self._clock.now()
            if left is not None and left <= 0:
                return False
            change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(change)
            try:
                await self.first(change, left)
            finally:
                self._waiting.discard(change)
        return True

    async def first(self, future: "asyncio.Future[Any]", seconds: float | None) -> bool:
        """Wait for a future for at most `seconds`; False on timeout. Raises the future's exception."""
        if seconds is None:
            await asyncio.shield(future)
            return True
        late: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def ring() -> None:
            if not late.done():
                late.set_result(None)

        timer = self._clock.call_later(seconds, ring)
        try:
            await asyncio.wait((future, late), return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            late.cancel()
        if future.done():
            future.result()
            return True
        return False


FAILURE_KEPT: Final = 10.0  # seconds for which a failed load answers further requests; doubled each time
KILLS_BEFORE_FAILURE: Final = 3  # of loads
DEATHS_BEFORE_PAUSE: Final = 3
DEATHS_COUNTED: Final = 120.0  # seconds for which a death is remembered
LONGEST_PAUSE: Final = 120.0  # seconds
KEPT_FOR_OTHERS: Final = 4
"""One part in so many of a model's places is for other accounts, as soon as several accounts use the model."""


@dataclass(eq=False)
class Slot:
    """A model in the pool: whether it is in memory, who holds it, and how its loads ended.

    `claimants` counts the requests of each account that hold this load or wait for it; while `closing`, new ones wait
    for the next load.
    Times use the pool's clock, except those that are displayed.
    """

    info: ModelInfo
    options: ModelOptions
    pinned: bool
    state: LoadState = "unloaded"
    stage: Literal["waiting", "starting", "prompt", "weights"] | None = None
    claimants: Counter[str] = field(default_factory=Counter)
    several: bool = False  # two accounts have claimed it at the same time
    drains: int = 0  # callers that want it unloaded once its requests are done
    resident: bool = False  # its footprint is counted against the budget
    footprint: int = 0
    memory: int = 0  # bytes that the worker may take
    worker: Worker | None = None
    ready: "asyncio.Future[Worker] | None" = None  # resolves to the worker once it can prepare requests
    loading: "asyncio.Task[None] | None" = None
    unloading: "asyncio.Task[None] | None" = None
    last_used: float = 0.0
    last_used_wall: float | None = None
    loaded_at: float | None = None
    load_seconds: float | None = None
    idle_seconds: float | None = None  # from the last request, overrides the option
    idle_timer: Timer | None = None
    died: bool = False  # the next load is a restart
    restarts: int = 0
    loads: int = 0
    evictions: int = 0
    error: ErrorReport | None = None
    failures: int = 0  # failed loads since the last success
    refuse_until: float = 0.0
    deaths: list[float] = field(default_factory=list)  # since it last answered
    # Held by a request that may be what ends workers.
    suspects: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def claims(self) -> int:
        return self.claimants.total()

    def claim(self, account: str) -> None:
        self.claimants[account] += 1

    def give_back(self, account: str) -> None:
        """End one claim of the account; accounts without any are forgotten."""
        self.claimants[account] -= 1
        if not self.claimants[account]:
            del self.claimants[account]

    @property
    def closing(self) -> bool:
        return self.drains > 0 or self.state == "unloading"

    @property
    def idle(self) -> bool:
        return self.state == "loaded" and self.claims == 0 and self.drains == 0

    @property
    def lost(self) -> ErrorReport | None:
        """The report of a worker that has died, until the slot is vacated for it."""
        return self.worker.died.result() if self.worker is not None and self.worker.died.done() else None

    def as_resident(self) -> Resident:
        return Resident(
            self.info.id, self.info.kind, self.footprint, self.claims > 0, self.pinned, self.last_used
        )

    def as_state(self) -> ModelState:
        return ModelState(
            id=self.info.id,
            kind=self.info.kind,
            state="unloading" if self.closing else self.state,
            stage=self.stage,
            progress=self.worker.progress if self.worker is not None else None,
            pinned=self.pinned,
            active=self.claims,
            last_used=self.last_used_wall,
            loaded_at=self.loaded_at,
            load_seconds=self.load_seconds,
            footprint=self.footprint if self.resident else 0,
            pid=self.worker.pid if self.worker is not None else None,
            restarts=self.restarts,
            loads=self.loads,
            evictions=self.evictions,
            error=self.error,
        )

    def check_failure(self, now: float) -> None:
        """Raise a recent failure again, instead of trying at once."""
        if now < self.refuse_until and self.error is not None:
            report = self.error
            raise ServerError(report.kind, report.message, retry_after=round(self.refuse_until - now, 1))

    def pause(self, now: float) -> float:
        """Seconds until the model is started again after several deaths."""
        return self.refuse_until - now if self.error is not None and self.error.kind == "overloaded" else 0.0

    def check_queue(self, account: str) -> None:
        """Refuse a request beyond the model's batch and queue, or beyond its account's share. Raises `ServerError`."""
        self.several = self.several or bool(account and self.claimants.keys() - {account, ""})
        places = self.options.max_num_seqs + self.options.queue_size
        own, others = self.claimants[account], places // KEPT_FOR_OTHERS if self.several else 0
        if self.claims >= places or own >= places - others:
            whose = "" if self.claims >= places else f" for you: {own} of {places} places are yours"
            message = f"The queue of model {self.info.id!r} is full{whose}; try again later."
            raise ServerError("overloaded", message, retry_after=5.0)

    def load_killed(self, error: ErrorReport) -> ErrorReport:
        """Remember a load whose process was killed: it is tried again at once, until it has been killed several times
        in a row. Returns the error for those who wait."""
        self.failures += 1
        return error if self.failures < KILLS_BEFORE_FAILURE else replace(error, kind="load_failed")

    def load_failed(self, error: ErrorReport, now: float) -> None:
        """Remember a failed load; it is repeated to clients for longer each time, until a load succeeds."""
        self.error = error
        self.failures += 1
        self.refuse_until = now + min(FAILURE_KEPT * 2.0 ** (self.failures - 1), LONGEST_PAUSE)

    def worker_died(self, error: ErrorReport, now: float) -> None:
        """Remember a death. After several in a short time, pause before the next start, longer each time."""
        self.error = error
        self.died = True
        if error.blameless:
            return
        self.deaths = [death for death in self.deaths if now - death < DEATHS_COUNTED] + [now]
        excess = len(self.deaths) - DEATHS_BEFORE_PAUSE
        if excess >= 0:
            pause = min(FAILURE_KEPT * 2.0**excess, LONGEST_PAUSE)
            self.refuse_until = now + pause
            self.error = ErrorReport(
                kind="overloaded",
                message=f"The process of model {self.info.id!r} has died {len(self.deaths)} times within "
                f"{DEATHS_COUNTED:.0f} seconds; it is started again in {pause:.0f} seconds at the earliest.",
            )
