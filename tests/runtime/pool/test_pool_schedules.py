"""Random schedules of requests, deaths and operators: what holds at every moment, and at the end."""

import asyncio
import random
from typing import Any

import pytest

from pippin.core.errors import ServerError
from pippin.runtime.pool import Lease
from tests.runtime.doubles import MIB, Stage, settle

POLICIES = ("wait", "fail", "preempt", "wait_then_fail", "wait_then_preempt")
MEMORY = 250 * MIB


class Schedule:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        policy = self.random.choice(POLICIES)
        most = self.random.choice([None, 1, 2])
        self.stage = Stage(memory=MEMORY, contention_policy=policy, max_models=most, drain_timeout=5.0)
        self.most = most or 3
        self.pending: list[asyncio.Task[Lease]] = []
        self.held: list[Lease] = []
        self.operators: list[asyncio.Task[Any]] = []

    async def run(self, steps: int) -> None:
        for _ in range(steps):
            await self.act()
            await settle()
            self.gather()
            self.check()
        await self.finish()

    async def act(self) -> None:
        stage, name = self.stage, self.random.choice("abc")
        match self.random.choice(
            ["lease"] * 5 + ["release"] * 4 + ["leave", "time", "time", "die", "unload", "pin"]
        ):
            case "lease":
                self.pending.append(stage.lease(name))
            case "release" if self.held:
                lease = self.held.pop(self.random.randrange(len(self.held)))
                lease.release(self.random.choice([None, None, 0.0, 3.0]))
            case "leave" if self.pending:
                self.random.choice(self.pending).cancel()
            case "time":
                await stage.clock.advance(self.random.choice([0.5, 5.0, 40.0]))
            case "die":
                living = [worker for worker in stage.launcher.launched if not worker.died.done()]
                if living:
                    self.random.choice(living).die()
            case "unload":
                self.operators.append(asyncio.create_task(stage.pool.unload(name)))
            case "pin":
                await stage.pool.pin(name, self.random.random() < 0.3)
            case _:
                stage.launcher.hold = self.random.random() < 0.2
                for worker in stage.launcher.launched:
                    if not worker.died.done():
                        worker.finish_load()

    def gather(self) -> None:
        for task in [task for task in self.pending if task.done()]:
            self.pending.remove(task)
            if task.cancelled():
                continue
            match task.exception():
                case None:
                    self.held.append(task.result())
                case ServerError():
                    pass
                case error:
                    raise AssertionError(error)

    def check(self) -> None:
        states = self.stage.pool.states()
        living = [worker for worker in self.stage.launcher.launched if not worker.died.done()]
        in_memory = [worker for worker in living if worker.may_load]
        assert len(in_memory) <= self.most
        assert len(living) - len(in_memory) <= 1  # one at a time gets ready while others make room
        assert len({worker.info.id for worker in living}) == len(living)  # one process for each model
        assert sum(state.footprint for state in states) <= MEMORY
        assert sum(state.active for state in states) <= len(self.pending) + len(self.held)
        assert all(state.active >= 0 for state in states)

    async def finish(self) -> None:
        """Everyone gets an answer, and everything is given back."""
        self.stage.launcher.hold = False
        for name in "abc":
            await self.stage.pool.pin(name, False)
        for _ in range(200):
            for worker in self.stage.launcher.launched:
                if not worker.died.done():
                    worker.finish_load()
            while self.held:
                self.held.pop().release()
            await self.stage.clock.advance(1.0)
            self.gather()
            if not self.pending and not self.held:
                break
        assert not self.pending, "a request is left without an answer"
        await self.stage.clock.advance(20.0)
        assert all(task.done() and task.exception() is None for task in self.operators)
        assert all(state.active == 0 for state in self.stage.pool.states())
        await self.stage.pool.close(1.0)
        assert all(worker.died.done() for worker in self.stage.launcher.launched)


@pytest.mark.parametrize("seed", range(60))
def test_no_schedule_exceeds_the_budget_or_forgets_a_request(seed: int) -> None:
    asyncio.run(Schedule(seed).run(60))


@pytest.mark.long
def test_thousands_of_schedules() -> None:
    for seed in range(1000, 3000):
        asyncio.run(Schedule(seed).run(80))
