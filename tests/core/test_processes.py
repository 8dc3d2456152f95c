"""Starts of processes in the server's event loop."""

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE

import psutil
import pytest
import uvloop

from pippin.core.processes import started


async def called_off(turns: int) -> None:
    """Begin to start a process, and cancel that after so many turns of the loop."""
    starting = asyncio.ensure_future(
        started(sys.executable, "-c", "input()", stdin=PIPE, stdout=PIPE, stderr=DEVNULL)
    )
    for _ in range(turns):
        await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting


@pytest.mark.parametrize("turns", range(4))
def test_of_a_start_that_is_called_off_nothing_is_left(turns: int, capfd: pytest.CaptureFixture[str]) -> None:
    """A transport that the closing loop finds open is an error, too, which pytest raises."""
    before = psutil.Process().children()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(called_off(turns))
    assert psutil.Process().children() == before
    assert capfd.readouterr().err == ""


def test_a_program_that_is_not_there_is_told_as_by_asyncio() -> None:
    async def start() -> None:
        await started("/no/such/program", stdin=PIPE)

    with pytest.raises(FileNotFoundError), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(start())
