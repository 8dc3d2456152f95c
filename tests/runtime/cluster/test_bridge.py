"""How a worker of the cluster ends for the server, and what is asked of Ray; without Ray."""

import asyncio
import math
import os
import runpy
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from pippin.config.cluster import MACHINE
from pippin.runtime.cluster import bridge
from pippin.runtime.cluster.needs import PART, Need
from tests.running_server import ROOT
from tests.runtime.cluster.nodes import free_port


@pytest.mark.parametrize("status", [0, 71, -signal.SIGKILL, -signal.SIGABRT, -signal.SIGTERM])
def test_a_bridge_ends_as_its_worker_did(status: int) -> None:
    program = f"from pippin.runtime.cluster.bridge import end_as; end_as({int(status)})"
    ended = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, check=False
    )
    assert ended.returncode == status


def test_ranks_have_a_machine_for_themselves_unless_they_are_bound() -> None:
    joined = {"CPU": 8.0, "memory": 64e9, MACHINE: 2.0}
    assert Need(5, "whole").resources(joined) == {"CPU": 1, "memory": 5, MACHINE: 1.0}
    assert Need(5, "shared").resources(joined) == {"CPU": PART, "memory": 5, MACHINE: PART}
    assert Need(5, "whole").resources({"CPU": 8.0, "GPU": 2.0}) == {"CPU": 1, "memory": 5, "GPU": 1}


def test_a_program_defines_nothing_that_ray_sends() -> None:
    """It would be sent as a copy, which a struct does not survive; each request got 424 so."""
    program = runpy.run_path(bridge.__file__, run_name="program")
    assert {program[name].__module__ for name in ("Host", "Ticket")} == {"pippin.runtime.cluster.host"}


def test_a_cluster_that_has_ended_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray remembers its address; the server would wait for it in place of beginning one."""
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{free_port()}")
    with pytest.raises(bridge.NoCluster, match="No Ray cluster is reached at 'auto'"):
        bridge.joined("auto")


class ActorError(Exception):
    """As Ray's: the actor is gone, perhaps because it could not begin."""

    def __init__(self, *, actor_init_failed: bool = False) -> None:
        super().__init__("The actor died.\nPages of its state.")
        self.actor_init_failed = actor_init_failed


RAY = SimpleNamespace(exceptions=SimpleNamespace(RayError=Exception, RayActorError=ActorError))


def actor(outcome: "tuple[str, str] | Exception") -> SimpleNamespace:
    async def introduce() -> tuple[str, str]:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return SimpleNamespace(introduce=SimpleNamespace(remote=introduce))


def test_an_actor_on_a_machine_that_has_just_gone_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "ASK_EVERY", 0.001)
    last = actor(("PEM", "machine"))
    actors = iter([actor(ActorError()), actor(ActorError()), last])
    assert asyncio.run(bridge.living(RAY, lambda: next(actors), "no room", 60.0)) == (
        last,
        ("PEM", "machine"),
    )


def test_an_actor_that_can_not_begin_is_not_asked_for_again() -> None:
    actors = iter([actor(ActorError(actor_init_failed=True))])
    with pytest.raises(bridge.NotPlaced, match=r"was lost\. The actor died\.$"):
        asyncio.run(bridge.living(RAY, lambda: next(actors), "no room", 60.0))


def test_a_worker_that_may_wait_is_placed_when_there_is_room() -> None:
    async def play() -> None:
        room: asyncio.Future[tuple[str, str]] = asyncio.get_running_loop().create_future()
        waits = SimpleNamespace(introduce=SimpleNamespace(remote=lambda: room))
        placing = asyncio.create_task(bridge.living(RAY, lambda: waits, "no room", math.inf))
        await asyncio.sleep(0.05)
        assert not placing.done()
        room.set_result(("PEM", "machine"))
        assert await placing == (waits, ("PEM", "machine"))
        with pytest.raises(bridge.NotPlaced, match="no room"):
            await bridge.living(
                RAY, lambda: SimpleNamespace(introduce=SimpleNamespace(remote=never)), "no room", 0.01
            )

    asyncio.run(play())


async def never() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("need", [Need(5, "whole"), Need(1 << 40, "shared")])
def test_a_need_crosses_a_command_line(need: Need) -> None:
    assert Need.of(*need.words()) == need
