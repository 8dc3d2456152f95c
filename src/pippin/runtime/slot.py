"""The place of one model in the pool: its state, its claims, and its history of failures."""

import asyncio
from dataclasses import dataclass, field
from typing import Final, Literal

from pippin.config.model_options import ModelOptions
from pippin.core.errors import ErrorReport, ServerError
from pippin.core.models import LoadState, ModelInfo, ModelState
from pippin.runtime.clock import Timer
from pippin.runtime.eviction import Resident
from pippin.runtime.supervisor import Worker

FAILURE_KEPT: Final = 10.0  # seconds that a failed load answers further requests
DEATHS_BEFORE_PAUSE: Final = 3
DEATHS_COUNTED: Final = 120.0  # seconds that a death is remembered
LONGEST_PAUSE: Final = 300.0  # seconds


@dataclass(eq=False)
class Slot:
    """`claims` counts the requests that hold this load or wait for it; while `closing`, new ones wait for
    the next. Times are the pool's clock, but for those that are shown."""

    info: ModelInfo
    options: ModelOptions
    pinned: bool
    state: LoadState = "unloaded"
    stage: Literal["waiting", "starting", "prompt", "weights"] | None = None
    claims: int = 0
    draining: bool = False
    resident: bool = False  # its footprint is taken from the budget
    footprint: int = 0
    worker: Worker | None = None
    ready: "asyncio.Future[Worker] | None" = None  # the worker, once it can prepare requests
    loading: "asyncio.Task[None] | None" = None
    unloading: "asyncio.Task[None] | None" = None
    last_used: float = 0.0
    last_used_wall: float | None = None
    loaded_at: float | None = None
    load_seconds: float | None = None
    idle_seconds: float | None = None  # what the last request asked for, instead of the option
    idle_timer: Timer | None = None
    restarts: int = 0
    error: ErrorReport | None = None
    refuse_until: float = 0.0
    deaths: list[float] = field(default_factory=list)

    @property
    def closing(self) -> bool:
        return self.draining or self.state == "unloading"

    def as_resident(self) -> Resident:
        return Resident(self.info.id, self.footprint, self.claims > 0, self.pinned, self.last_used)

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
            footprint=self.footprint,
            pid=self.worker.pid if self.worker is not None else None,
            restarts=self.restarts,
            error=self.error,
        )

    def check(self, now: float) -> None:
        """Raise the failure of a short while ago instead of trying again at once."""
        if now < self.refuse_until and self.error is not None:
            report = self.error
            raise ServerError(report.kind, report.message, retry_after=round(self.refuse_until - now, 1))

    def load_failed(self, error: ErrorReport, now: float) -> None:
        self.error = error
        self.refuse_until = now + FAILURE_KEPT

    def worker_died(self, error: ErrorReport, now: float) -> None:
        """Remember a death; after several in a short time, pause before the next try, longer each time."""
        self.error = error
        self.deaths = [death for death in self.deaths if now - death < DEATHS_COUNTED] + [now]
        excess = len(self.deaths) - DEATHS_BEFORE_PAUSE
        if excess >= 0:
            pause = min(FAILURE_KEPT * 2**excess, LONGEST_PAUSE)
            self.refuse_until = now + pause
            self.error = ErrorReport(
                kind="overloaded",
                message=f"{error.message.split(' The next request')[0]} It has died {len(self.deaths)} times "
                f"within {DEATHS_COUNTED:.0f} seconds and is tried again in {pause:.0f} seconds.",
            )
