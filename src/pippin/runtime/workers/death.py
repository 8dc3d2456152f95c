"""The end of a worker: whether it is stopped, and the report of how it died, during what, and what to do.

The kernel tells exactly which processes are stopped (SIGSTOP): they keep their memory and sockets but answer nobody. A
heartbeat could not: it needs the interpreter, which a call into a library may hold, and CPU time, which a busy machine
may not grant. A model that merely computes for long would be killed.
"""

import asyncio
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil
from msgspec import Struct

from pippin.core.errors import MENDS, ErrorReport
from pippin.core.link import GROUP_LOST, STEP_FAILED

STOPPED_FOR: Final = 6.0  # seconds after which a stopped process is given up
LOOK_EVERY: Final = 1.0  # seconds


async def until_stopped(pid: int, *, or_any_below: bool = False) -> bool:
    """Wait until a process has been stopped for `STOPPED_FOR` seconds (True), or has ended (False).

    `or_any_below` also watches the process's descendants. Time in which this process was itself suspended does not
    count, because the other may have been suspended with it.
    """
    looks = 0
    while looks * LOOK_EVERY < STOPPED_FOR:
        await asyncio.sleep(LOOK_EVERY)
        try:
            process = psutil.Process(pid)
            stopped = process.status() == psutil.STATUS_STOPPED
            if or_any_below and not stopped:
                stopped = await asyncio.to_thread(_has_stopped_below, process)
        except psutil.Error:
            return False
        looks = looks + 1 if stopped else 0
    return True


def _has_stopped_below(process: psutil.Process) -> bool:
    for each in process.children(recursive=True):
        with suppress(psutil.Error):  # ended meanwhile
            if each.status() == psutil.STATUS_STOPPED:
                return True
    return False


GIB: Final = 1 << 30
STARTED_AGAIN: Final = " The next request starts it again."


class Death(Struct, frozen=True, kw_only=True):
    """How a worker died, and what it was doing."""

    status: int  # exit status, or a negative signal number
    fault: Exception | None  # what was wrong with the frames that it sent
    doing: str | None  # the stage of the load; None once loaded
    needed: int  # the bytes that it was expected to take
    free: int  # bytes of the machine's memory when it began to load
    starved: bool  # the system killed a process for lack of memory during the worker's life
    far: bool = False  # the worker ran on another machine; what ended here is the command that reached it
    excess: tuple[int, int] | None = None  # the bytes that it took, and its limit, if it was killed for that
    cause: str | None = None  # and the way out, by its last words
    stopped: bool = False  # it was killed because it had been stopped (SIGSTOP) for long


def death_report(model: str, death: Death) -> ErrorReport:
    """The report for clients. `model` is the title of its spec."""
    ended_here = death.fault is not None or death.excess is not None or death.stopped
    killed = death.status == -signal.SIGKILL and not ended_here
    if death.doing is None:
        why = " for lack of memory" if killed and death.starved else ""
        way_out = "" if death.cause is None else f" {death.cause}"
        message = f"The process of model {model} died: {_how(death)}{why}.{way_out}{STARTED_AGAIN}"
        return ErrorReport(kind="worker_died", message=message, blameless=killed and not death.starved)
    if death.far:
        message = (
            f"The model {model} could not be loaded: its process there ended while it {death.doing}, or was not "
            f"reached ({_how(death)}). The server's log has the last words of the command that starts it."
        )
        return ErrorReport(kind="load_failed", message=message)
    words = [
        f"The model {model} could not be loaded: its process died while it {death.doing} ({_how(death)}).",
        f"It needs about {_size(death.needed)}, and {_size(death.free)} were free when it started.",
    ]
    if killed and death.starved:
        words.append(f"The system ended it for lack of memory: {MENDS}.")
    elif killed:
        words.append(f"If nobody ended it by hand, the system did for lack of memory: {MENDS}.")
        return ErrorReport(kind="worker_died", message=" ".join(words), blameless=True)
    else:
        words.append(death.cause or "The server's log has its last words.")
    return ErrorReport(kind="load_failed", message=" ".join(words))


def _how(death: Death) -> str:
    if death.fault is not None:
        return "it sent what could not be read and was ended"
    if death.excess is not None:
        taken, most = map(_size, death.excess)
        return f"it took {taken} of memory, more than the {most} that it may take at most, and was ended"
    if death.stopped:
        who = "the command that reaches it" if death.far else "it"
        return f"{who} was stopped (SIGSTOP), answered nothing for {STOPPED_FOR:g} seconds, and was ended"
    if death.status < 0:
        named = {each.value: each.name for each in signal.Signals}
        return f"it was ended by signal {-death.status}, {named.get(-death.status, 'which has no name')}"
    if death.status == STEP_FAILED:
        return "its engine failed in a step, and the server's log has more"
    if death.status == GROUP_LOST:
        return "it lost another rank of its group, and the server's log has more"
    return f"it left with status {death.status}"


def _size(count: int) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count >> 20} MiB"


def starved() -> int:
    """Number of processes that the system has killed for lack of memory since boot, as far as it reports that
    (Linux)."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
