"""Which processes count as stopped."""

import asyncio
import signal
import subprocess
from collections.abc import Iterator

import pytest

from pippin.runtime.workers import death
from pippin.runtime.workers.death import until_stopped

BUSY = "while true; do true; done"
WITH_ONE_BELOW = "sleep 100 & echo $!; wait"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(death, "STOPPED_FOR", 0.2)
    monkeypatch.setattr(death, "LOOK_EVERY", 0.05)


@pytest.fixture
def shell(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    words = ["sh", "-c", request.param]
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as process:
        yield process
        process.kill()


def verdict(pid: int, within: float = 5.0, *, or_any_below: bool = False) -> bool | None:
    """None where there is none within so many seconds."""

    async def judge() -> bool | None:
        try:
            return await asyncio.wait_for(until_stopped(pid, or_any_below=or_any_below), within)
        except TimeoutError:
            return None

    return asyncio.run(judge())


@pytest.mark.parametrize("shell", [BUSY], indirect=True)
def test_a_process_counts_as_stopped_only_while_it_is(shell: "subprocess.Popen[bytes]") -> None:
    assert verdict(shell.pid, 0.5) is None, "it computes"
    shell.send_signal(signal.SIGSTOP)
    assert verdict(shell.pid) is True
    shell.send_signal(signal.SIGCONT)
    assert verdict(shell.pid, 0.5) is None
    shell.kill()
    shell.wait()
    assert verdict(shell.pid) is False


@pytest.mark.parametrize("shell", [WITH_ONE_BELOW], indirect=True)
def test_a_command_counts_as_stopped_with_any_process_below_it(shell: "subprocess.Popen[bytes]") -> None:
    assert shell.stdout is not None
    below = int(shell.stdout.readline())
    subprocess.run(["kill", "-STOP", str(below)], check=True)
    assert verdict(shell.pid, 0.5) is None
    assert verdict(shell.pid, or_any_below=True) is True
    subprocess.run(["kill", "-KILL", str(below)], check=True)
