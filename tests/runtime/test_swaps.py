"""One model after another in the same memory: the next worker gets ready while the last one leaves."""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import pytest

from pippin.config.options.server import ServerOptions
from pippin.core.errors import ServerError
from pippin.core.events import Tokenized
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.core.tasks import Tokenize
from pippin.runtime.workers.supervisor import WorkerProcess
from tests.runtime import processes
from tests.runtime.doubles import Stage, settle
from tests.runtime.swapping import said, swaps_leave_nothing
from tests.service.doubles import MIB, events_of, scripted, scripted_service, write_script


def play(scene: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(scene())  # type: ignore[arg-type]


def test_the_next_worker_gets_ready_while_a_busy_model_finishes() -> None:
    async def scene() -> None:
        stage = Stage(max_models=1)
        busy = await stage.lease("a")
        wanted = stage.lease("b")
        await settle()
        newcomer = stage.launcher.last("b")
        assert newcomer.prompt_ready.done()
        assert not newcomer.may_load
        assert {state.id: state.footprint for state in stage.pool.states()} == {"a": 100 * MIB, "b": 0}
        busy.release()
        assert (await wanted).worker is newcomer
        assert newcomer.may_load

    play(scene)


def test_an_idle_model_stays_until_the_next_one_is_ready_for_its_weights() -> None:
    async def scene() -> None:
        stage = Stage(max_models=1)
        await stage.use("a")
        old = stage.launcher.last("a")
        old.may_stop.clear()
        stage.launcher.hold = True
        wanted = stage.lease("b")
        await settle()
        newcomer = stage.launcher.last("b")
        assert old.stop_deadline is None
        newcomer.prompt_ready.set_result(None)
        await settle()
        assert old.stop_deadline is not None
        assert not newcomer.may_load, "the old model's memory is not free yet"
        old.may_stop.set()
        await settle()
        assert newcomer.may_load
        assert wanted.done()

    play(scene)


def test_a_load_that_fails_before_its_weights_sends_nobody_away() -> None:
    async def scene() -> None:
        stage = Stage(max_models=1)
        await stage.use("a")
        stage.launcher.fail_with = "The chat template is broken."
        with pytest.raises(ServerError, match="template is broken"):
            await stage.lease("b")
        await settle()
        assert stage.loaded == "a"
        assert stage.state("b") == "failed"
        assert not stage.launcher.last("a").died.done()
        await stage.use("a")
        assert stage.launcher.names == ["a", "b"]

    play(scene)


@pytest.mark.parametrize("policy", ["wait", "preempt", "wait_then_preempt"])
def test_a_load_that_fails_before_its_weights_ends_the_wait_and_cuts_nobody(policy: str) -> None:
    async def scene() -> None:
        stage = Stage(max_models=1, contention_policy=policy, contention_wait=5.0)
        busy = await stage.lease("a")
        stage.launcher.hold = True
        wanted = stage.lease("b")
        await stage.clock.advance(10.0)
        assert busy.worker.stop_deadline is None
        stage.launcher.last("b").fail_load("The chat template is broken.")
        with pytest.raises(ServerError, match="template is broken"):
            await wanted
        assert stage.loaded == "a"
        busy.release()

    play(scene)


def test_a_worker_that_dies_while_it_waits_for_room_sends_nobody_away() -> None:
    async def scene() -> None:
        stage = Stage(max_models=1, contention_policy="wait")
        busy = await stage.lease("a")
        waiting = [stage.lease("b") for _ in range(3)]
        await settle()
        stage.launcher.last("b").die()
        await settle()
        assert not busy.worker.died.done()
        busy.release()
        leases = [await each for each in waiting]  # of the next process of "b"
        await settle()
        assert stage.loaded == "b"
        for each in leases:
            each.release()

    play(scene)


def test_a_first_stage_that_takes_too_long_sends_nobody_away() -> None:
    async def scene() -> None:
        stage = Stage(max_models=1)
        await stage.use("a")
        stage.launcher.hold = True
        wanted = stage.lease("b")
        await stage.clock.advance(stage.catalog.options_for(stage.infos["b"]).load_timeout + 1)
        with pytest.raises(ServerError, match="took more than"):
            await wanted
        await settle()
        assert stage.loaded == "a"
        assert stage.launcher.last("b").died.done()

    play(scene)


def test_a_worker_that_waits_for_room_ends_when_the_wait_is_refused() -> None:
    async def scene() -> None:
        stage = Stage(max_models=1, contention_policy="wait_then_fail", contention_wait=30.0)
        busy = await stage.lease("a")
        wanted = stage.lease("b")
        await stage.clock.advance(31)
        with pytest.raises(ServerError, match="no room"):
            await wanted
        await settle()
        assert stage.launcher.last("b").died.done()
        assert stage.loaded == "a"
        busy.release()

    play(scene)


def test_only_the_first_in_line_starts_a_process() -> None:
    async def scene() -> None:
        stage = Stage(max_models=1, contention_policy="wait")
        busy = await stage.lease("a")
        first, second = stage.lease("b"), stage.lease("c")
        await settle()
        assert stage.launcher.names == ["a", "b"]
        busy.release()
        (await first).release()
        await second
        await settle()
        assert stage.launcher.names == ["a", "b", "c"]
        assert stage.loaded == "c"

    play(scene)


def test_closing_ends_a_worker_that_waits_for_room() -> None:
    async def scene() -> None:
        stage = Stage(max_models=1, contention_policy="wait")
        await stage.lease("a")
        wanted = stage.lease("b")
        await settle()
        await stage.pool.close(0.0)
        with pytest.raises(ServerError, match="shutting down"):
            await wanted
        assert stage.launcher.names == ["a", "b"]
        assert all(worker.died.done() for worker in stage.launcher.launched)

    play(scene)


def test_a_swap_for_an_idle_model_goes_on_when_the_caller_leaves() -> None:
    async def scene() -> None:
        stage = Stage(max_models=1)
        await stage.use("a")
        stage.launcher.hold = True
        wanted = stage.lease("b")
        await settle()
        wanted.cancel()
        await settle()
        stage.launcher.last("b").finish_load()
        await settle()
        assert stage.loaded == "b", "whoever asks again finds it loaded"

    play(scene)


def test_a_model_that_is_pinned_while_the_next_one_gets_ready_stays() -> None:
    async def scene() -> None:
        stage = Stage(max_models=1)
        await stage.use("a")
        stage.launcher.hold = True
        wanted = stage.lease("b")
        await settle()
        await stage.pool.pin("a", True)
        stage.launcher.last("b").finish_load()
        with pytest.raises(ServerError, match="pinned models hold it"):
            await wanted
        assert stage.loaded == "a"

    play(scene)


def test_nobody_is_sent_away_when_there_is_room_by_the_time_the_next_one_is_ready() -> None:
    async def scene() -> None:
        stage = Stage(max_models=2)
        for name in "ab":
            await stage.use(name)
            await stage.clock.advance(1)
        stage.launcher.hold = True
        wanted = stage.lease("c")
        await settle()
        await stage.pool.unload("b")
        stage.launcher.last("c").finish_load()
        await wanted
        await settle()
        assert stage.loaded == "ac"

    play(scene)


def test_a_model_that_loads_learns_of_its_new_share_of_the_memory() -> None:
    async def scene() -> None:
        stage = Stage(memory=1000 * MIB)
        stage.launcher.hold = True
        first = stage.lease("a")
        await settle()
        assert stage.launcher.last("a").memory_bytes == 1000 * MIB
        second = stage.lease("b")
        await settle()
        assert stage.launcher.last("a").changes == [{"memory_bytes": 500 * MIB}]
        for name in "ab":
            stage.launcher.last(name).finish_load()
        await asyncio.gather(first, second)

    play(scene)


def test_a_worker_process_loads_its_weights_only_when_told_and_leaves_at_once_without() -> None:
    async def scene() -> None:
        first, second = [await WorkerProcess.launch(WorkerSpec(info=scripted())) for _ in range(2)]
        await asyncio.gather(first.prompt_ready, second.prompt_ready)
        first.load_weights(None)
        await first.weights_ready
        assert not second.weights_ready.done()
        started = time.monotonic()
        await second.stop(10.0)
        assert time.monotonic() - started < 10.0, "it has nothing to finish"
        await first.stop(0.0)
        assert processes.children() == []

    play(scene)


def test_a_request_outlives_a_kill_9_of_the_worker_that_waits_for_room_for_it(tmp_path: Path) -> None:
    async def scene() -> None:
        slow = scripted("slow", write_script(tmp_path, {"say": "word " * 9, "gap": 0.01}, name="slow"))
        options = ServerOptions(max_models=1, contention_policy="wait")
        async with scripted_service(slow, scripted("next"), options=options) as service:
            busy = await service.pool.lease(slow)
            wanted = asyncio.create_task(service.start(Tokenize("x"), model="next", id="r"))
            while service.pool.info("next") is None:  # noqa: ASYNC110 - the process is what is waited for
                await asyncio.sleep(0.01)
            pid = {state.id: state.pid for state in service.pool.states()}["next"]
            processes.signal(pid, signal.SIGKILL)
            await asyncio.sleep(0.2)
            assert not busy.worker.died.done()
            busy.release()
            async with asyncio.timeout(60):
                async with aclosing(await wanted) as run:
                    assert isinstance([event async for event in events_of(run)][-1], Tokenized)
        assert processes.children() == []

    play(scene)


def two_scripted(folder: Path) -> list[ModelInfo]:
    return [scripted(name, write_script(folder, name=name, ballast_mb=20)) for name in ("one", "two")]


def test_swaps_leak_no_process_no_descriptor_no_memory(tmp_path: Path) -> None:
    swaps_leave_nothing(two_scripted(tmp_path), 4)


@pytest.mark.long
def test_a_hundred_swaps_leak_no_process_no_descriptor_no_memory(tmp_path: Path) -> None:
    swaps_leave_nothing(two_scripted(tmp_path), 100)


def test_swaps_under_streaming_clients_lose_no_request(tmp_path: Path) -> None:
    async def scene() -> None:
        rule = {"say": "one two three four five", "gap": 0.005}
        infos = [scripted(name, write_script(tmp_path, rule, name=name)) for name in ("one", "two")]
        async with scripted_service(*infos, options=ServerOptions(max_models=1)) as service:

            async def client(number: int) -> list[str]:
                names = [("one", "two")[(number + turn) % 2] for turn in range(3)]
                return [await said(service, name, f"{number}.{turn}") for turn, name in enumerate(names)]

            answers = await asyncio.gather(*(client(number) for number in range(16)))
            assert answers == [["one two three four five"] * 3] * 16

    play(scene)
