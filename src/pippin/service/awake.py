"""Keeps the machine from sleeping while requests run, with the system's own program for that."""

import asyncio
import contextlib
import logging
import shutil
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

GRACE: Final = 30.0  # seconds after the last request: agents soon send another

# Each command keeps the system awake until its `cat` ends, which happens when its input is closed and so also when the
# server dies. Closing the lid or choosing Sleep still puts the machine to sleep.
MACOS: Final = ("caffeinate", "-i", "cat")
LINUX: Final = ("systemd-inhibit", "--what=idle", "--who=pippin", "--why=A model answers a request", "cat")

SYSTEMD: Final = Path("/run/systemd/system")
"""Exists where systemd runs (sd_booted(3))."""


class Awake:
    """Runs the program from the first request until `grace` seconds after the last one.

    Never raises: if the program is missing or has no permission, the machine may sleep.
    """

    def __init__(self, command: tuple[str, ...], grace: float = GRACE) -> None:
        self._command = command
        self._grace = grace
        self._holding: asyncio.Task[None] | None = None
        self._release = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    def working(self) -> None:
        """A request started."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._release.clear()
        if self._holding is None:
            self._holding = asyncio.create_task(self._hold(self._command), name="keep awake")

    def resting(self) -> None:
        """No request runs any more."""
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
        """Run the program until it is released; again if a request came while it ended."""
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
        """Keep the finished task in place, so that no other one is started."""
        log.info("The machine may go to sleep while requests run: %s %s.", self._command[0], reason)


async def _end(process: Process) -> None:
    """End the program by closing its input, and make sure that it is gone."""
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
    """The way to keep this machine awake, if that is wanted and a program for it exists.

    Linux without systemd, such as in a container, has nothing that would suspend an idle machine.
    """
    command = {"darwin": MACOS, "linux": LINUX}.get(system) if wanted else None
    if system == "linux" and not systemd.is_dir():
        return None
    return Awake(command) if command is not None and shutil.which(command[0]) else None
