"""A model that takes more memory than its plan sheds its caches, then is started anew between requests."""

import asyncio
from typing import Any

import pytest

from pippin.core.models import EngineStats
from pippin.runtime.pool import overuse
from pippin.runtime.pool.overuse import LOOK_EVERY, PATIENCE, SECONDS_BETWEEN, soft_limit
from pippin.runtime.pool.state import Slot
from tests.runtime.doubles import FakeWorker, Stage, settle

GIB = 1 << 30


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Bytes that every worker has in its process (`resident`) and on its device (`device`)."""
    found = {"resident": GIB, "device": 0}

    async def stats(self: FakeWorker) -> EngineStats:
        return EngineStats(active_bytes=found["device"])

    monkeypatch.setattr(FakeWorker, "stats", stats)
    monkeypatch.setattr(overuse.Overuse.__init__, "__defaults__", (lambda pid: found["resident"],))
    return found


def state(stage: Stage) -> Any:
    return next(each for each in stage.pool.states() if each.id == "a")


def plan(stage: Stage) -> int:
    slot: Slot = stage.pool._slots["a"]
    return max(slot.memory, slot.footprint)


def test_a_model_within_its_plan_is_left_alone(taken: dict[str, int]) -> None:
    async def scenario() -> None:
        stage = Stage()
        await stage.use("a")
        taken["resident"] = soft_limit(plan(stage))
        await stage.clock.advance(10 * LOOK_EVERY)
        assert stage.launcher.last("a").cleared == 0
        assert (state(stage).sheds, state(stage).renewals) == (0, 0)

    asyncio.run(scenario())


@pytest.mark.parametrize("where", ["resident", "device"])
def test_a_model_above_its_plan_sheds_its_caches(
    taken: dict[str, int], where: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        stage = Stage()
        await stage.use("a")
        taken[where] = soft_limit(plan(stage)) + 1
        await stage.clock.advance(LOOK_EVERY)
        assert stage.launcher.last("a").cleared == 1
        assert state(stage).sheds == 1
        taken[where] = 0
        await stage.clock.advance(10 * LOOK_EVERY)
        assert (state(stage).sheds, state(stage).renewals, stage.launcher.names) == (1, 0, ["a"])

    asyncio.run(scenario())
    assert "a takes" in caplog.text
    assert "it sheds its caches" in caplog.text


def test_a_model_that_still_takes_too_much_is_started_anew_between_requests(taken: dict[str, int]) -> None:
    async def scenario() -> None:
        stage = Stage()
        running = await stage.lease("a")
        taken["resident"] = 8 * GIB
        await stage.clock.advance(3 * LOOK_EVERY)
        assert (state(stage).renewals, stage.launcher.names) == (0, ["a"])  # its request runs on
        waiting = stage.lease("a")
        await settle()
        assert not waiting.done()
        running.release()
        taken["resident"] = GIB
        lease = await waiting
        assert stage.launcher.names == ["a", "a"]
        assert lease.worker is stage.launcher.last("a")
        lease.release()
        await settle()
        assert stage.loaded == "a"

    asyncio.run(scenario())


def test_a_long_request_keeps_new_ones_waiting_only_so_long(taken: dict[str, int]) -> None:
    async def scenario() -> None:
        stage = Stage()
        running = await stage.lease("a")
        taken["resident"] = 8 * GIB
        await stage.clock.advance(3 * LOOK_EVERY)
        waiting = stage.lease("a")
        await stage.clock.advance(PATIENCE)
        lease = await waiting
        assert lease.worker is running.worker
        lease.release()
        running.release()
        await stage.clock.advance(SECONDS_BETWEEN)  # and then it is tried again
        assert (state(stage).renewals, stage.launcher.names) == (1, ["a", "a"])

    asyncio.run(scenario())


def test_an_idle_model_is_loaded_again_at_once_and_not_again_and_again(taken: dict[str, int]) -> None:
    async def scenario() -> None:
        stage = Stage()
        await stage.use("a")
        taken["resident"] = 8 * GIB
        await stage.clock.advance(2 * LOOK_EVERY)
        assert (stage.launcher.names, stage.loaded) == (["a", "a"], "a")
        await stage.clock.advance(SECONDS_BETWEEN - 4 * LOOK_EVERY)
        assert stage.launcher.names == ["a", "a"]
        await stage.clock.advance(10 * LOOK_EVERY)
        assert stage.launcher.names == ["a", "a", "a"]

    asyncio.run(scenario())


def test_what_was_unloaded_meanwhile_stays_so(taken: dict[str, int]) -> None:
    async def scenario() -> None:
        stage = Stage()
        await stage.use("a")
        taken["resident"] = 8 * GIB
        await stage.pool.unload("a")
        await stage.clock.advance(10 * LOOK_EVERY)
        assert (stage.launcher.names, stage.loaded) == (["a"], "")

    asyncio.run(scenario())


def test_a_pool_that_closes_starts_nothing_anew(taken: dict[str, int]) -> None:
    async def scenario() -> None:
        stage = Stage()
        lease = await stage.lease("a")
        taken["resident"] = 8 * GIB
        await stage.clock.advance(3 * LOOK_EVERY)
        assert state(stage).state == "unloading"  # it waits for its request
        closing = asyncio.create_task(stage.pool.close(0.0))
        await settle()
        lease.release()
        await closing
        await stage.clock.advance(10 * LOOK_EVERY)
        assert (stage.launcher.names, stage.loaded) == (["a"], "")

    asyncio.run(scenario())
