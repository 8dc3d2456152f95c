"""The state of one model in the pool: whether it is in memory, who holds it, and how its loads ended."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Final, Literal

from msgspec.structs import replace

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ErrorReport, ServerError
from pippin.core.models import LoadState, ModelInfo, ModelState
from pippin.runtime.workers.worker import Worker

FAILURE_KEPT: Final = 10.0  # seconds for which a failed load answers further requests; doubled each time
KILLS_BEFORE_FAILURE: Final = 3  # of loads
DEATHS_BEFORE_PAUSE: Final = 3
DEATHS_COUNTED: Final = 120.0  # seconds for which a death is remembered
LONGEST_PAUSE: Final = 120.0  # seconds
KEPT_FOR_OTHERS: Final = 4
"""One part in so many of a model's places is for other accounts, as soon as several accounts use the model."""


@dataclass(eq=False)
class Slot:
    """A model in the pool. Times use the pool's clock, except those that are displayed."""

    info: ModelInfo
    options: ModelOptions
    pinned: bool
    state: LoadState = "unloaded"
    stage: Literal["waiting", "starting", "prompt", "weights"] | None = None
    # The requests of each account that hold this load or wait for it; while `closing`, new ones wait for the next load.
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
    idle_timer: asyncio.TimerHandle | None = None
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

    def cut(self, message: str) -> None:
        """Fail all requests, which may be sent again."""
        if self.worker is not None:
            self.worker.requests.fail_all(ErrorReport(kind="overloaded", message=message, retry_after=5.0))

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

    @property
    def paused_until(self) -> float:
        """When the model may be started again after several deaths."""
        return self.refuse_until if self.error is not None and self.error.kind == "overloaded" else 0.0

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
