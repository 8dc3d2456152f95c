"""Keeps the machine from going to sleep while requests run, with the program that the system has for it."""

import asyncio
import contextlib
import logging
import shutil
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

GRACE: Final = 30.0  # seconds after the last request: agents soon ask again

# Each holds the system awake until the command behind it ends: `cat` does when its input is closed, and so when the
# server dies. Closing the lid, or choosing Sleep, still puts the machine to sleep.
MACOS: Final = ("caffeinate", "-i", "cat")
LINUX: Final = ("systemd-inhibit", "--what=idle", "--who=pippin", "--why=A model answers a request", "cat")

SYSTEMD: Final = Path("/run/systemd/system")
"""Is there where systemd runs (sd_booted(3))."""


class Awake:
    """Runs the program from the first request on until `grace` seconds after the last one.

    Nothing is ever raised: without such a program, or where it may do nothing, the machine sleeps as it pleases.
    """

    def __init__(self, command: tuple[str, ...], grace: float = GRACE) -> None:
        self._command = command
        self._grace = grace
        self._holding: asyncio.Task[None] | None = None
        self._release = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    def working(self) -> None:
        """A request runs."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._release.clear()
        if self._holding is None:
            self._holding = asyncio.create_task(self._hold(self._command), name="keep awake")

    def resting(self) -> None:
        """No request runs."""
        if self._holding is not None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._grace, self._release.set)

    async def close(self) -> None:
        """End the program now."""
        if self._timer is not None:
            self._timer.cancel()
        self._release.set()
        if self._holding is not None:
            await self._holding

    async def _hold(self, command: tuple[str, ...]) -> None:
        """Run the program until it is to end; once more where a request came while it ended."""
        while not self._release.is_set():
            try:
                process = await asyncio.create_subprocess_exec(
                    *command, stdin=PIPE, stdout=DEVNULL, stderr=DEVNULL
                )
            except OSError as error:
                self._give_up(f"does not start ({error.strerror})")
                return
            ended = asyncio.create_task(process.wait())
            released = asyncio.create_task(self._release.wait())
            await asyncio.wait({ended, released}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                released.cancel()
                self._give_up(f"ended with status {ended.result()}")
                return
            await _end(process)
        self._holding = self._timer = None

    def _give_up(self, reason: str) -> None:
        """The task stays, done, so that no other one is begun."""
        log.info("The machine may go to sleep while requests run: %s %s.", self._command[0], reason)


async def _end(process: Process) -> None:
    """End the program, whose command ends with its input, and see that it has gone."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(1.0):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def keeping_awake(*, wanted: bool, system: str = sys.platform, systemd: Path = SYSTEMD) -> Awake | None:
    """What keeps this machine awake, if that is wanted and there is a program for it.

    A Linux that systemd did not start, such as a container, has nobody who would put it to sleep for being idle.
    """
    command = {"darwin": MACOS, "linux": LINUX}.get(system) if wanted else None
    if system == "linux" and not systemd.is_dir():
        return None
    return Awake(command) if command is not None and shutil.which(command[0]) else None
