"""Admission of one more model to memory: who waits, who leaves, and what happens when busy models hold it."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from pippin.config.options.server import ServerOptions
from pippin.core.errors import ErrorReport, ServerError
from pippin.runtime.pool.clock import Changes, Clock
from pippin.runtime.pool.eviction import Resident, Shortage, shortage, victims
from pippin.runtime.pool.slot import Slot

log = logging.getLogger(__name__)

GIB: Final = 1 << 30

Act = Callable[[Slot], Coroutine[Any, Any, None]]


class Admission:
    """Admits models to memory one by one: those that need others to leave, in the order in which they came."""

    def __init__(
        self,
        options: ServerOptions,
        budget: int,
        slots: dict[str, Slot],
        changes: Changes,
        clock: Clock,
        prepare: Act,
        unload: Act,
    ) -> None:
        """`prepare` is the part of a load that takes no memory yet."""
        self._options = options
        self._budget = budget
        self._slots = slots
        self._changes = changes
        self._clock = clock
        self._prepare = prepare
        self._unload = unload
        self._line: list[Slot] = []

    def adopt(self, options: ServerOptions, budget: int) -> None:
        self._options = options
        self._budget = budget

    async def admit(self, slot: Slot) -> None:
        """Reserve `slot.footprint` bytes in the budget.

        Waits, or raises `ServerError`, as the contention policy says.
        """
        if slot.footprint > self._budget:
            raise ServerError(
                "load_failed",
                f"The model {slot.info.id!r} needs about {slot.footprint / GIB:.1f} GiB, more than the "
                f"{self._budget / GIB:.1f} GiB that models may take together. Raise memory_budget_gb or "
                "memory_percent, or choose a smaller quantisation.",
            )
        waits = self._options.contention_policy in ("wait_then_fail", "wait_then_preempt")
        deadline = self._clock.now() + self._options.contention_wait if waits else None
        self._line.append(slot)
        try:
            await self._in_line(slot, deadline)
        finally:
            self._line.remove(slot)
            self._changes.tell()

    def allowance(self, slot: Slot) -> int:
        """Bytes for the weights and caches of a model: its own, and an equal share of what is free."""
        residents = [each for each in self._slots.values() if each.resident]
        free = max(0, self._budget - sum(each.footprint for each in residents))
        return slot.footprint + free // max(1, len(residents))

    def excess(self) -> int:
        """Bytes that the resident models take beyond the budget."""
        return sum(each.footprint for each in self._slots.values() if each.resident) - self._budget

    async def _in_line(self, slot: Slot, deadline: float | None) -> None:
        while True:
            if self._line[0] is slot:
                missing = self._missing(slot)
                if not missing:
                    slot.resident = True
                    return
                await self._make_room(slot, missing, deadline)
                continue
            if self._options.contention_policy == "fail" and self._missing(slot):
                raise self._refusal(slot)
            if not await self._changes.until(lambda: self._line[0] is slot, self._left(deadline)):
                raise self._refusal(slot)

    async def _make_room(self, slot: Slot, missing: Shortage, deadline: float | None) -> None:
        chosen = victims(self._residents(), missing)
        if chosen is None:
            raise self._refusal(slot, "pinned models hold it")
        leaving = [self._slots[resident.id] for resident in chosen]
        for victim in leaving:
            victim.drains += 1
        try:
            drained = await self._prepared_and_drained(slot, leaving, deadline)
            if not self._missing(slot) or any(victim.pinned for victim in leaving):
                return  # what was chosen before the wait may be wrong by now
            if not drained:
                await self._preempt(slot, leaving)
            slot.stage = "starting"
            log.info("Unloading %s for %s.", ", ".join(each.info.id for each in leaving), slot.info.id)
            resident = [victim for victim in leaving if victim.resident]
            for victim in resident:
                victim.evictions += 1
            await asyncio.gather(*(self._unload(victim) for victim in resident))
        finally:
            for victim in leaving:
                victim.drains -= 1
            self._changes.tell()

    async def _prepared_and_drained(self, slot: Slot, leaving: list[Slot], deadline: float | None) -> bool:
        """Let the new worker start while the victims finish their requests; whether they did.

        What raises here, a load that fails in its first stage or a policy that refuses it, calls off the other, and no
        model has left yet.
        """
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._prepare(slot), name=f"prepare {slot.info.id}")
                return await self._drained(slot, leaving, deadline)
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None

    async def _drained(self, slot: Slot, leaving: list[Slot], deadline: float | None) -> bool:
        """Wait for the victims' requests as far as the policy waits at all; False where they are to be cut."""

        def done() -> bool:
            return all(
                not victim.resident or (victim.claims == 0 and victim.stage is None) for victim in leaving
            )

        policy = self._options.contention_policy
        slot.stage = "waiting"
        if policy not in ("fail", "preempt"):
            await self._changes.until(lambda: done() or slot.lost is not None, self._left(deadline))
        if slot.lost is not None:
            raise ServerError.of(slot.lost)
        if done():
            slot.stage = "starting"
            return True
        if policy not in ("preempt", "wait_then_preempt"):
            raise self._refusal(slot)
        return False

    async def _preempt(self, slot: Slot, leaving: list[Slot]) -> None:
        # Loads are not cut: models that preempt each other's loads would never serve anyone.
        await self._changes.until(
            lambda: all(victim.stage is None or not victim.resident for victim in leaving)
        )
        for victim in leaving:
            if victim.worker is not None:
                victim.worker.fail_all(
                    ErrorReport(
                        kind="overloaded",
                        message=f"The model {victim.info.id!r} was unloaded to make room for "
                        f"{slot.info.id!r}. Please send the request again.",
                        retry_after=5.0,
                    )
                )

    def _missing(self, slot: Slot) -> Shortage:
        return shortage(self._residents(), slot.footprint, self._budget, self._options.max_models)

    def _residents(self) -> list[Resident]:
        return [each.as_resident() for each in self._slots.values() if each.resident]

    def _left(self, deadline: float | None) -> float | None:
        return None if deadline is None else max(0.0, deadline - self._clock.now())

    def _refusal(self, slot: Slot, why: str = "busy models hold it") -> ServerError:
        return ServerError(
            "overloaded",
            f"There is no room in memory for the model {slot.info.id!r}: {why}. Try again later.",
            retry_after=max(1.0, self._options.contention_wait),
        )
