"""What the system knows of processes: who lives, how many descriptors and how much memory."""

import asyncio
import os
import time
from pathlib import Path

import psutil


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def children() -> list[int]:
    """Our children, zombies among them."""
    return sorted(child.pid for child in psutil.Process().children())


def descriptors() -> int:
    return (
        len(list(Path("/proc/self/fd").iterdir()))
        if Path("/proc/self/fd").exists()
        else psutil.Process().num_fds()
    )


def resident() -> int:
    return int(psutil.Process().memory_info().rss)


def gone_within(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while alive(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


async def loop_stall(task: "asyncio.Task[object]") -> float:
    """The longest time, in seconds, for which the event loop served nobody while the task ran. Time that the thread
    was ready to run, and other processes had the cores, is not the loop's."""
    worst = 0.0
    while not task.done():
        before, waited = time.monotonic(), in_line()
        await asyncio.sleep(0.005)
        worst = max(worst, time.monotonic() - before - 0.005 - (in_line() - waited))
    return worst


def in_line() -> float:
    """How long this thread has waited for a core, in seconds; 0 where the system does not tell."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def signal(pid: int | None, number: int) -> None:
    assert pid is not None
    os.kill(pid, number)
