"""Two models on a made-up Mac stay below what macOS lets a GPU keep, whatever each is allowed to take."""

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from pippin.config import accelerator
from pippin.config.options.model import ModelOptions
from pippin.config.options.server import ServerOptions
from pippin.engines.device import DeviceFacts, decide
from tests.as_on_a_mac.mac import WORKING_SETS, Mac
from tests.runtime.doubles import Stage

PERCENT = [0.8, 1.0]


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    accelerator.working_set.cache_clear()
    yield
    accelerator.working_set.cache_clear()


def budget_of(facts: DeviceFacts, share: float, said: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """What models may take together; `said` is `iogpu.wired_limit_mb`."""
    monkeypatch.setattr(accelerator, "accelerator", lambda: "metal")
    monkeypatch.setattr(accelerator, "machine_memory", lambda: facts.memory)
    monkeypatch.setattr(accelerator.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=f"{said}\n"))
    return accelerator.memory_budget(ServerOptions(memory_percent=share))


@pytest.mark.parametrize("share", PERCENT)
@pytest.mark.parametrize("gigabytes", WORKING_SETS)
def test_two_workers_with_their_freed_buffers_fit_the_working_set(
    gigabytes: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = Mac(gigabytes).facts
    stage = Stage(memory=budget_of(facts, share, 0, monkeypatch))

    async def both() -> None:
        for name in "ab":
            await stage.use(name)

    asyncio.run(both())
    assert stage.loaded == "ab"
    taken = 0
    for name in "ab":
        worker = stage.launcher.last(name)
        told = worker.changes[-1]["memory_bytes"] if worker.changes else worker.memory_bytes
        plan = decide(facts, ModelOptions(), told)
        taken += plan.memory_limit + plan.allocator_cache
        assert plan.allocation_limit is not None
        assert plan.allocation_limit <= facts.working_set
    assert taken < facts.working_set


@pytest.mark.parametrize("gigabytes", WORKING_SETS)
def test_a_limit_that_the_operator_has_set_is_the_bound(
    gigabytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = Mac(gigabytes).facts
    for share in PERCENT:
        accelerator.working_set.cache_clear()
        lowered = budget_of(facts, share, 4096, monkeypatch)
        assert lowered <= 4 << 30
