"""Processes that are started before it is known what they load."""

import asyncio
import subprocess
import sys

import pytest

from pippin.cli.begin import begun
from pippin.cli.verbs.serve import settle
from pippin.config.errors import ConfigError
from pippin.config.options.model import ModelOptions
from pippin.config.options.server import ModelEntry, ServerOptions
from pippin.core.models import WorkerSpec
from pippin.runtime.workers.link import LOST
from pippin.runtime.workers.process import Child
from pippin.runtime.workers.supervisor import WorkerProcess
from tests.runtime import processes
from tests.service.doubles import scripted

FIRST = ServerOptions(models=(ModelEntry(path="lazy", preload=False), ModelEntry(path="m")))


def test_the_first_worker_here_takes_the_process_that_waits_and_the_next_one_begins_its_own() -> None:
    async def scene() -> None:
        waiting = [Child()]
        (pid,) = processes.children()
        far = WorkerSpec(info=scripted(), command=f"{sys.executable} -m pippin.worker - nowhere")
        workers = [await WorkerProcess.launch(far, waiting)]
        assert len(waiting) == 1, "a worker on another machine is reached by a program"
        workers += [await WorkerProcess.launch(WorkerSpec(info=scripted()), waiting) for _ in range(2)]
        assert waiting == []
        assert workers[1].pid == pid
        assert len({worker.pid for worker in workers}) == 3
        for worker in workers[1:]:
            await worker.prompt_ready
        for worker in workers:
            await worker.stop(0.0)
        assert processes.children() == []

    asyncio.run(scene())


def test_a_process_that_ends_while_it_waits_is_a_load_that_was_lost() -> None:
    async def scene() -> None:
        waiting = [Child()]
        waiting[0].process.kill()
        worker = await WorkerProcess.launch(WorkerSpec(info=scripted()), waiting)
        assert (await worker.died).kind == LOST

    asyncio.run(scene())


@pytest.mark.parametrize("arguments", [["m"], ["--model", "m"], []], ids=["named", "by flag", "in a file"])
def test_a_start_that_fails_leaves_no_process(arguments: list[str]) -> None:
    def start() -> None:
        with begun(arguments) as waiting:
            settle(waiting, FIRST)
            assert [child.process.pid for child in waiting] == processes.children()
            raise ConfigError("no such model")

    with pytest.raises(ConfigError):
        start()
    assert processes.children() == []


@pytest.mark.parametrize(
    "options",
    [
        ServerOptions(),
        ServerOptions(models=(ModelEntry(path="lazy", preload=False),)),
        ServerOptions(models=(ModelEntry(path="m", options=ModelOptions(cluster="auto")),)),
    ],
    ids=["none", "lazy", "elsewhere"],
)
def test_no_process_waits_where_no_model_is_loaded_here_at_the_start(options: ServerOptions) -> None:
    with begun(["m"]) as waiting:
        assert len(waiting) == 1
        settle(waiting, options)
        assert waiting == processes.children() == []


AHEAD = """
import socket, sys
from pippin.worker.main import import_ahead
here, server = socket.socketpair()
server.send(TOLD)
import_ahead(here)
print(*sys.modules)
"""


@pytest.mark.parametrize("told", [b"", b"spec"])
def test_a_worker_that_is_told_nothing_yet_imports_what_may_precede_the_fast_arithmetic(told: bytes) -> None:
    command = [sys.executable, "-c", AHEAD.replace("TOLD", repr(told))]
    found = set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    assert ("tokenizers" in found) == ("numpy" in found) == (not told)
    assert not {"mlx", "mlx.core", "huggingface_hub", "transformers"} & found, "they read what is set later"
