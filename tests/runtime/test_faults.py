"""Worker processes that die, stop, lie or are left behind: what the others see of it."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from pathlib import Path
from typing import Any

import pytest

from pippin.config.options.server import ModelEntry, ServerOptions
from pippin.config.worker_environment import worker_environment
from pippin.core.conversation import Message, Text
from pippin.core.errors import ServerError
from pippin.core.events import Event, Failed, PartDelta
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.core.requests import GenerationRequest
from pippin.core.tasks import CountTokens, Generate, Speak
from pippin.runtime.workers import death, link, supervisor
from pippin.runtime.workers.supervisor import WorkerProcess
from pippin.service.service import Run, Service
from tests.runtime import processes
from tests.service.doubles import events_of, scripted, scripted_service, write_script


def play(scene: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(scene())  # type: ignore[arg-type]


def request(text: str = "Hi", **fields: Any) -> GenerationRequest:
    return GenerationRequest(model="default", messages=(Message("user", (Text(text),)),), **fields)


async def begin(service: Service, id: str = "r", model: str = "default", text: str = "Hi") -> Run:
    return await service.start(Generate(request(text)), model=model, id=id)


async def answer(service: Service, id: str = "r", model: str = "default", text: str = "Hi") -> str:
    async with aclosing(await begin(service, id, model, text)) as run:
        return (await run.collect()).choices[0].text("text")


async def until_text(run: Run) -> list[Event]:
    events: list[Event] = []
    while not any(isinstance(event, PartDelta) for event in events):
        events += await run.take()
    return events


async def failure(run: Run) -> Failed:
    async with asyncio.timeout(60):  # a worker beside many others is slow to take memory
        last = [event async for event in events_of(run)][-1]
    assert isinstance(last, Failed)
    return last


def pid_of(service: Service, model: str) -> int:
    pid = {state.id: state.pid for state in service.pool.states()}[model]
    assert pid is not None
    return pid


def slow(folder: Path, name: str = "model", **script: Any) -> Path:
    return write_script(folder, {"say": "word " * 500, "gap": 0.01}, name=name, **script)


def breaking_off(*models: ModelInfo) -> AbstractAsyncContextManager[Service]:
    """A service whose streams end with their worker."""
    options = ServerOptions(models=(ModelEntry(path=models[0].id),), resume_streams=False)
    return scripted_service(*models, options=options)


def test_kill_9_in_mid_stream_fails_every_request_and_the_next_one_restarts(tmp_path: Path) -> None:
    async def scene() -> None:
        async with breaking_off(scripted(script=slow(tmp_path))) as service:
            runs = [await begin(service, f"r{number}") for number in range(8)]
            for run in runs:
                await until_text(run)
            processes.signal(pid_of(service, "scripted"), signal.SIGKILL)
            for run in runs:
                failed = await failure(run)
                assert failed.error.kind == "worker_died"
                assert "signal 9" in failed.error.message
                assert "next request starts it again" in failed.error.message
                await run.aclose()
            async with aclosing(await begin(service)) as run:
                assert await until_text(run)
            await service.pool.load(
                "scripted"
            )  # text may come a moment before the pool knows that the load is done
            assert service.pool.states()[0].restarts == 1
        assert processes.children() == []

    play(scene)


@pytest.mark.parametrize(
    ("fault", "words"), [("abort", "signal 6"), ("exit", "status 3"), ("error", "engine failed in a step")]
)
def test_a_worker_that_fails_in_a_step_is_told_and_restarted(
    tmp_path: Path, fault: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        bad = {"when": {"user": "bad"}, "say": "a b c d", "fault": {"kind": fault, "after": 2}}
        script = write_script(tmp_path, bad)
        async with scripted_service(scripted(script=script)) as service:
            async with aclosing(await begin(service, text="bad")) as run:
                assert words in (await failure(run)).error.message
            assert await answer(service, text="good") == "good"

    with caplog.at_level(logging.ERROR):
        play(scene)
    if fault == "error":
        assert "the script asked for an error in this step" in caplog.text
    assert "scripted" in caplog.text


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the kernel has no such limit")
@pytest.mark.parametrize(
    ("device", "words"),
    [("cpu", "its engine failed in a step"), ("cuda", "more than the 200 MiB that it may take")],
)
def test_a_worker_that_takes_memory_without_end_is_ended_at_its_limit(
    tmp_path: Path, device: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's limit on a CPU; elsewhere the watch over its resident memory."""
    monkeypatch.setattr(supervisor, "accelerator", lambda: device)
    monkeypatch.setattr(supervisor, "limit_of", lambda plan, total: 200 << 20)

    async def scene() -> None:
        script = write_script(
            tmp_path, {"when": {"user": "bad"}, "say": "a b c", "fault": {"kind": "memory", "after": 1}}
        )
        async with scripted_service(scripted(script=script), scripted("other")) as service:
            async with aclosing(await begin(service, text="bad")) as run:
                failed = await failure(run)
                assert failed.error.kind == "worker_died"
                assert words in failed.error.message
            assert await answer(service, text="good") == "good"
            assert await answer(service, model="other") == "Hi"

    play(scene)


def test_one_models_death_does_not_touch_another(tmp_path: Path) -> None:
    async def scene() -> None:
        models = [scripted(name, slow(tmp_path, name)) for name in ("first", "second")]
        async with breaking_off(*models) as service:
            first, second = await begin(service, "r1", "first"), await begin(service, "r2", "second")
            await until_text(second)
            processes.signal(pid_of(service, "first"), signal.SIGKILL)
            assert (await failure(first)).error.kind == "worker_died"
            events = await until_text(second)
            assert not any(isinstance(event, Failed) for event in events)
            await first.aclose()
            await second.aclose()

    play(scene)


@pytest.mark.parametrize("moment", ["answering", "loading"])
def test_a_worker_that_stays_stopped_is_ended_and_the_next_request_starts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    monkeypatch.setattr(death, "LOOK_EVERY", 0.05)
    monkeypatch.setattr(death, "STOPPED_FOR", 0.3)
    words = "was stopped (SIGSTOP), answered nothing for"

    async def scene() -> None:
        script = slow(tmp_path, load_seconds=0.5 if moment == "loading" else 0.0)
        async with breaking_off(scripted(script=script)) as service:
            beginning = asyncio.create_task(begin(service))
            if moment == "answering":
                run = await beginning
                await until_text(run)
            while not (states := service.pool.states()) or states[0].pid is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            processes.signal(pid_of(service, "scripted"), signal.SIGSTOP)
            if moment == "answering":
                error = (await failure(run)).error
                await run.aclose()
                async with aclosing(await begin(service)) as run:
                    assert await until_text(run)
            else:
                with pytest.raises(ServerError) as caught:
                    await beginning
                error = caught.value.report
            assert words in error.message
            assert "lack of memory" not in error.message

    play(scene)


def test_a_stopped_worker_holds_up_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(death, "STOPPED_FOR", 60.0)

    async def scene() -> None:
        stuck, lively = scripted("stuck", slow(tmp_path, "stuck")), scripted("lively")
        async with scripted_service(stuck, lively) as service:
            run = await begin(service, "r1", "stuck")
            await until_text(run)
            pid = pid_of(service, "stuck")
            processes.signal(pid, signal.SIGSTOP)

            async def others() -> None:
                big = "word " * 60_000  # far more than the socket's buffers hold
                for number in range(20):
                    task = CountTokens(request(big))
                    stalled.append(asyncio.create_task(service.start(task, model="stuck", id=f"s{number}")))
                for number in range(20):
                    assert await answer(service, f"l{number}", "lively", "still here") == "still here"

            stalled: list[asyncio.Task[Run]] = []
            assert await processes.loop_stall(asyncio.create_task(others())) < 0.1
            assert not any(task.done() for task in stalled)
            stats = await service.pool.stats("stuck")
            assert [each.id for each in stats.requests] == ["r1", *(f"s{number}" for number in range(20))]
            assert (stats.running, stats.waiting) == (0, 21)  # nothing was known before
            processes.signal(pid, signal.SIGCONT)
            async with asyncio.timeout(20):
                for task in stalled:
                    await (await task).aclose()
                assert await until_text(run)
            await run.aclose()

    play(scene)


def test_a_stopped_worker_is_ended_at_close(tmp_path: Path) -> None:
    async def scene() -> None:
        async with scripted_service(scripted(script=slow(tmp_path))) as service:
            run = await begin(service)
            processes.signal(pid_of(service, "scripted"), signal.SIGSTOP)
            started = time.monotonic()
            await service.close(0.0)
            assert time.monotonic() - started < 8
            assert (await failure(run)).error.status in (500, 503)
            await run.aclose()
        assert processes.children() == []

    play(scene)


def test_a_stalled_step_is_ended_at_close(tmp_path: Path) -> None:
    async def scene() -> None:
        script = write_script(tmp_path, {"say": "a", "fault": {"kind": "stall"}})
        async with scripted_service(scripted(script=script)) as service:
            run = await begin(service)
            await service.close(0.1)
            await run.aclose()
        assert processes.children() == []

    play(scene)


def test_a_worker_that_dies_while_loading_is_a_failed_load(tmp_path: Path) -> None:
    async def scene() -> None:
        script = write_script(tmp_path, load_fault="abort", load_seconds=0.2)
        async with scripted_service(scripted(script=script)) as service:
            with pytest.raises(ServerError, match="its process died while it loaded its weights") as failed:
                await begin(service)
            assert failed.value.report.kind == "load_failed"
            assert "signal 6, SIGABRT" in failed.value.report.message
            assert "needs about 100 MiB, and" in failed.value.report.message
            with pytest.raises(ServerError, match="its process died while") as again:
                await begin(service)
            assert again.value.report.retry_after is not None, "answered from memory, without another try"
            assert processes.children() == []

    play(scene)


def test_a_stopped_worker_takes_only_so_many_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        async with scripted_service() as service:
            assert await answer(service) == "Hi"
            processes.signal(pid_of(service, "scripted"), signal.SIGSTOP)
            monkeypatch.setattr(link, "UNSENT_BYTES", 1 << 20)
            task = CountTokens(request("word " * 1_000_000))
            waiting = [
                asyncio.create_task(service.start(task, model="scripted", id=f"s{number}"))
                for number in range(3)
            ]
            done, pending = await asyncio.wait(waiting, timeout=5.0, return_when=asyncio.FIRST_COMPLETED)
            assert done
            for refused in done:
                error = refused.exception()
                assert isinstance(error, ServerError)
                assert error.report.status == 503
                assert error.report.retry_after
            for start in pending:
                start.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
            assert service.active == 0

    play(scene)


def test_a_bug_in_preparation_fails_that_request_and_its_id_is_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene() -> None:
        async with scripted_service() as service:
            with pytest.raises(ServerError, match="fault in the server") as failed:
                await service.start(Speak(text="x", speed=0.0), model="default", id="req-77")
            assert failed.value.report.status == 500
            assert "ZeroDivisionError" not in failed.value.report.message
            assert await answer(service) == "Hi"

    with caplog.at_level(logging.ERROR):
        play(scene)
    [line] = [record for record in caplog.records if "ZeroDivisionError" in record.getMessage()]
    assert "scripted [req-77]" in line.getMessage()
    assert line.request_id == "req-77"


LIAR = """
import socket, sys
link = socket.socket(fileno=int(sys.argv[1]))
link.recv(1 << 20)
link.sendall({data!r})
link.recv(1)
"""


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x05hello",
        b"\x00\x00\x00\x01\xc1",
        b"\x00\x00\x00\x05\x81\xa1a\xa1\xff",
    ],
    ids=["size", "text", "never", "bytes"],
)
def test_a_worker_that_sends_rubbish_is_ended(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    real = subprocess.Popen

    def lying(command: Sequence[str], **settings: Any) -> subprocess.Popen[bytes]:
        return real([command[0], "-c", LIAR.format(data=data), *command[3:]], **settings)

    monkeypatch.setattr(subprocess, "Popen", lying)

    async def scene() -> None:
        worker = await WorkerProcess.launch(WorkerSpec(info=scripted()))
        async with asyncio.timeout(5):
            with pytest.raises(ServerError, match="could not be read"):
                await worker.prompt_ready
            assert (await worker.died).kind == "load_failed"
        assert processes.children() == []

    play(scene)


PARENT = """
import asyncio, sys
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.runtime.workers.supervisor import WorkerProcess

async def main():
    info = ModelInfo(id="m", kind="scripted", path=sys.argv[1])
    workers = [await WorkerProcess.launch(WorkerSpec(info=info)) for _ in range(2)]
    for worker in workers:
        worker.load_weights(None)
        await (worker.weights_ready if sys.argv[2] == "loaded" else worker.prompt_ready)
    print(*(worker.pid for worker in workers), flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("stop_workers", [False, True], ids=["running", "stopped"])
@pytest.mark.parametrize("moment", ["loaded", "loading"])
def test_when_the_server_is_killed_its_workers_end(tmp_path: Path, moment: str, stop_workers: bool) -> None:
    if stop_workers and sys.platform != "linux":
        pytest.skip("only Linux ends a stopped orphan")
    script = write_script(tmp_path, load_seconds=0.0 if moment == "loaded" else 30.0)
    command = [sys.executable, "-c", PARENT, str(script), moment]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=worker_environment(), text=True) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        if stop_workers:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
        parent.kill()
    assert all(processes.gone_within(pid, 5.0) for pid in pids)


def test_the_workers_lines_are_logged_with_model_and_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        script = write_script(tmp_path, {"when": {"user": "("}})
        options = ServerOptions(models=(ModelEntry(path="careless"),), log_level="debug")
        async with scripted_service(scripted("careless", script), options=options) as service:
            with pytest.raises(ServerError, match="cannot be used"):
                await begin(service)

    with caplog.at_level(logging.DEBUG):
        play(scene)
    lines = [record for record in caplog.records if record.name == "pippin.worker"]
    assert any("careless" in line.getMessage() and "Loading" in line.getMessage() for line in lines)
