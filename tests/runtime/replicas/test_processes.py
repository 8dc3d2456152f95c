"""Replicas as real processes of the scripted engine."""

import asyncio
import os
import shlex
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path

import openai
import psutil
import pytest

from pippin.config.options.model import ModelOptions
from pippin.core.completion import collect
from pippin.core.errors import ServerError
from pippin.core.models import EngineStats, ModelInfo, WorkerSpec
from pippin.runtime import replicas
from pippin.runtime.cluster.needs import Cluster, Need, Node
from pippin.runtime.replicas import Replicas, share_of
from pippin.service.service import Service
from tests.running_server import running_server
from tests.runtime.doubles import FakeLauncher, FakeWorker
from tests.service.doubles import (
    StaticCatalog,
    answer,
    asked,
    events_of,
    scripted,
    scripted_service,
    write_script,
)


def served(folder: Path, *rules: dict[str, object], replicas: int = 2, **script: object) -> StaticCatalog:
    info = scripted("m", write_script(folder, *rules, **script))
    return StaticCatalog(info, options={"m": ModelOptions(replicas=replicas)}, sizes={"m": 50 << 20})


def replicas_of(service: Service) -> Replicas:
    worker = service.pool._slots["m"].worker
    assert isinstance(worker, Replicas)
    return worker


def running(group: Replicas) -> int:
    """The requests of all replicas."""
    return sum(process.running for process in group.seats)


async def all_loaded(service: Service) -> Replicas:
    await service.pool.load("m")
    group = replicas_of(service)
    await until(lambda: all(process.loaded for process in group.seats))
    return group


async def until(true: object, seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not true():  # type: ignore[operator] # noqa: ASYNC110
            await asyncio.sleep(0.02)


def test_a_killed_replica_costs_no_whole_answer_and_comes_back(tmp_path: Path) -> None:
    async def play() -> None:
        catalog = served(tmp_path, {"when": {"user": "."}, "say": "one two three four five six", "gap": 0.05})
        async with scripted_service(*catalog.models(), catalog=catalog) as service:
            group = await all_loaded(service)
            texts = [asyncio.create_task(answer(service, f"question {n}", f"r{n}")) for n in range(12)]
            await until(lambda: running(group) == 12)
            pids = [process.worker.pid for process in group.seats]
            assert len(set(pids)) == 2
            assert [process.running for process in group.seats] == [6, 6]
            os.kill(pids[0] or 0, signal.SIGKILL)
            assert set(await asyncio.gather(*texts)) == {"one two three four five six"}
            await until(lambda: all(process.loaded for process in group.seats))
            assert replicas_of(service) is group
            assert group.seats[0].worker.pid not in pids
            assert [process.running for process in group.seats] == [0, 0]

    asyncio.run(play())


def test_a_replica_that_finds_no_place_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "FIRST_PAUSE", 0.01)

    async def play() -> None:
        launcher = FakeLauncher()
        refusals = [True, True]

        async def launch(spec: WorkerSpec) -> FakeWorker:
            if len(launcher.launched) == 2 and refusals:
                refusals.pop()
                raise ServerError("load_failed", "No machine of the cluster has room.")
            return await launcher(spec)

        info = ModelInfo(id="m", kind="scripted")
        group = await Replicas.start(WorkerSpec(info=info, options={"replicas": 2}), launch)
        group.load_weights(None)
        await group.weights_ready
        launcher.launched[0].die()
        await until(lambda: len(launcher.launched) == 3 and all(each.loaded for each in group.seats))
        await group.stop(0.0)

    asyncio.run(play())


GB = 1 << 30


def test_replicas_of_a_cluster_share_a_machine_by_what_they_need() -> None:
    need = Need(8 * GB, "shared")
    assert share_of([64 * GB], need, 1) == 64 * GB
    assert share_of([64 * GB], need, 2) == 32 * GB
    assert share_of([64 * GB, 20 * GB], need, 4) == 10 * GB  # two on the smaller one
    assert share_of([64 * GB, 4 * GB], need, 2) == 32 * GB  # none on the smaller one
    assert share_of([4 * GB], need, 2) is None


def test_a_replica_that_the_cluster_has_room_for_serves_and_the_other_waits_for_room(tmp_path: Path) -> None:
    async def play() -> None:
        launched: list[FakeWorker] = []

        async def launch(spec: WorkerSpec) -> FakeWorker:
            launched.append(FakeWorker(spec, 0, hold=True))
            return launched[-1]

        info = scripted("m", write_script(tmp_path))
        spec = WorkerSpec(info=info, options={"replicas": 2, "cluster": "auto"}, expected_bytes=8 * GB)
        group = await Replicas.start(spec, launch, Cluster("10.0.0.1:6379", (Node("10.0.0.1", 10 * GB),)))
        placed, waiting = launched
        placed.prompt_ready.set_result(None)
        await group.prompt_ready
        group.load_weights(GB)
        placed.finish_load()
        await group.weights_ready
        assert (placed.memory_bytes, waiting.memory_bytes) == (10 * GB, 10 * GB)
        waiting.fail_load("No machine of the cluster has 8.0 GiB of memory free.")
        waiting.die()
        await until(lambda: len(launched) == 3)
        launched[2].prompt_ready.set_result(None)
        await until(lambda: launched[2].may_load)
        launched[2].finish_load()
        await until(lambda: all(process.loaded for process in group.seats))
        words = [shlex.split(each.spec.command or "")[3:7] for each in launched]
        told = ["10.0.0.1:6379", str(8 * GB), "shared"]
        assert words == [[*told, "60.0"], [*told, "60.0"], [*told, "inf"]]
        await group.stop(0.0)

    asyncio.run(play())


def test_where_no_replica_finds_room_the_load_fails_with_the_reason() -> None:
    async def play() -> None:
        launcher = FakeLauncher()
        launcher.hold = True
        info = ModelInfo(id="m", kind="scripted")
        group = await Replicas.start(WorkerSpec(info=info, options={"replicas": 2}), launcher)
        for each in launcher.launched:
            each.fail_load("No machine has room.")
            each.die()
        with pytest.raises(ServerError, match="No machine has room"):
            await group.prompt_ready
        await group.died

    asyncio.run(play())


def test_the_longest_sequence_of_several_replicas_is_what_each_has_room_for() -> None:
    rooms = [EngineStats(longest_sequence=4000, running=1), EngineStats(longest_sequence=3000, running=2)]
    assert EngineStats.total(rooms).longest_sequence == 3000
    assert EngineStats.total(rooms).running == 3
    assert EngineStats.total([EngineStats(), EngineStats()]).longest_sequence == 0


def test_an_answer_that_has_begun_goes_on_with_another_replica(tmp_path: Path) -> None:
    async def play() -> None:
        catalog = served(tmp_path, {"when": {"user": "."}, "say": "one two three four five", "gap": 0.2})
        async with scripted_service(*catalog.models(), catalog=catalog) as service:
            group = await all_loaded(service)
            async with aclosing(await service.start(asked("go"), model="m", id="r")) as run:
                said = []
                async for event in events_of(run):
                    said.append(event)
                    if len(said) == 2:
                        busy = next(each for each in group.seats if each.running)
                        os.kill(busy.worker.pid or 0, signal.SIGKILL)
            assert collect(said).choices[0].text("text") == "one two three four five"
            assert replicas_of(service) is group
            assert running(group) == 0

    asyncio.run(play())


def test_a_request_that_kills_its_workers_is_begun_again_once(tmp_path: Path) -> None:
    async def play() -> None:
        poison = {"when": {"user": "poison"}, "fault": {"kind": "abort"}, "say": "x"}
        catalog = served(tmp_path, poison, replicas=3)
        async with scripted_service(*catalog.models(), catalog=catalog) as service:
            group = await all_loaded(service)
            with pytest.raises(ServerError, match="died"):
                await answer(service, "poison", "r")
            assert not group.died.done()
            assert await answer(service, "hello", "s") == "hello"

    asyncio.run(play())


def test_the_death_of_all_is_the_models_and_the_next_request_starts_them_again(tmp_path: Path) -> None:
    async def play() -> None:
        catalog = served(tmp_path)
        async with scripted_service(*catalog.models(), catalog=catalog) as service:
            group = await all_loaded(service)
            for process in group.seats:
                os.kill(process.worker.pid or 0, signal.SIGKILL)
            await until(group.died.done)
            assert await answer(service, "hello", "r") == "hello"
            assert replicas_of(service) is not group

    asyncio.run(play())


def test_replicas_count_in_the_budget_as_often_as_there_are(tmp_path: Path) -> None:
    async def play() -> None:
        catalog = served(tmp_path, replicas=3, load_seconds=1.0)
        async with scripted_service(*catalog.models(), catalog=catalog) as service:
            loading = asyncio.create_task(service.pool.load("m"))
            await until(lambda: any(state.footprint for state in service.pool.states()))
            assert service.pool.states()[0].footprint == 3 * (50 << 20)
            await loading

    asyncio.run(play())


def test_a_load_that_fails_is_told_once_and_leaves_no_process(tmp_path: Path) -> None:
    async def play() -> None:
        catalog = served(tmp_path, load_error="The weights are damaged.")
        async with scripted_service(*catalog.models(), catalog=catalog) as service:
            with pytest.raises(ServerError, match="damaged"):
                await service.pool.load("m")
            group_gone = lambda: service.pool.states()[0].state == "failed"  # noqa: E731
            await until(group_gone)
            assert service.pool.states()[0].pid is None

    asyncio.run(play())


def test_a_whole_answer_over_http_is_begun_anew_where_its_replica_is_lost(tmp_path: Path) -> None:
    model = write_script(tmp_path, {"when": {"user": "."}, "say": "one two three four five", "gap": 0.1})
    with (
        running_server(tmp_path, str(model), "--replicas", "2") as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client,
        ThreadPoolExecutor(6) as threads,
    ):

        def ask(number: int) -> str | None:
            answer = client.chat.completions.create(
                model="default", messages=[{"role": "user", "content": f"question {number}"}]
            )
            assert answer.usage is not None
            assert answer.usage.completion_tokens == 6
            return answer.choices[0].message.content

        assert ask(6) == "one two three four five"  # the client is warm
        answers = [threads.submit(ask, number) for number in range(6)]
        time.sleep(0.3)  # in which each has said something
        [server] = [each for each in psutil.Process().children() if "--replicas" in each.cmdline()]
        next(each for each in server.children() if "pippin.worker" in each.cmdline()).kill()
        assert {each.result() for each in answers} == {"one two three four five"}
