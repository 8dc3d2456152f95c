"""How much memory a worker may take at most."""

import asyncio
import os
import sys

import psutil
import pytest

from pippin.runtime.workers import supervisor
from pippin.runtime.workers.supervisor import MemoryWatch, limit_of

GIB = 1 << 30


def test_a_limit_stands_above_the_plan_and_below_the_machine() -> None:
    assert limit_of(GIB, 64 * GIB) == GIB * 3 // 2 + 2 * GIB
    assert limit_of(40 * GIB, 64 * GIB) == int(64 * GIB * 0.95)
    assert limit_of(63 * GIB, 64 * GIB) == 63 * GIB, "an operator's word goes before ours"


@pytest.mark.parametrize("system", ["linux", "darwin"])
def test_a_process_above_its_limit_is_told_of(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(supervisor, "accelerator", lambda: "metal")
    monkeypatch.setattr(supervisor, "limit_of", lambda plan, total: 1 << 20)
    excess = asyncio.run(MemoryWatch(os.getpid(), 0).excess())
    assert excess is not None
    taken, most = excess
    assert taken > most == 1 << 20


def test_a_lower_limit_begins_once_the_process_has_come_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "accelerator", lambda: "metal")
    monkeypatch.setattr(supervisor, "limit_of", lambda plan, total: plan)
    monkeypatch.setattr(supervisor, "LOOK_AT_MEMORY_EVERY", 0.01)
    resident = psutil.Process().memory_info().rss

    async def scene() -> None:
        watch = MemoryWatch(os.getpid(), resident * 8)
        watching = asyncio.create_task(watch.excess())
        watch.plan(resident // 2)
        await asyncio.sleep(0.05)
        assert watch.limit == resident * 8
        watch.plan(resident * 4)
        await asyncio.sleep(0.05)
        assert watch.limit == resident * 4
        assert not watching.done()
        watching.cancel()

    asyncio.run(scene())
