"""Detects stopped processes (SIGSTOP), which keep their memory and sockets but answer nobody.

The kernel reports this exactly. A heartbeat could not: it needs the interpreter, which a call into a library may hold,
and CPU time, which a busy machine may not grant. A model that merely computes for long would be killed.
"""

import asyncio
from typing import Final

import psutil

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
            stopped = _is_stopped(process)
            if or_any_below and not stopped:
                stopped = await asyncio.to_thread(_has_stopped_below, process)
        except psutil.Error:
            return False
        looks = looks + 1 if stopped else 0
    return True


def _is_stopped(process: psutil.Process) -> bool:
    return bool(process.status() == psutil.STATUS_STOPPED)


def _has_stopped_below(process: psutil.Process) -> bool:
    for each in process.children(recursive=True):
        try:
            if _is_stopped(each):
                return True
        except psutil.Error:  # ended meanwhile
            continue
    return False
