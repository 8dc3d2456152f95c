"""Processes that are stopped (SIGSTOP): they live, keep their memory and their sockets, and answer nobody.

The kernel tells it exactly. Signs of life would not: whoever gives them needs the interpreter, which one call into a
library may keep, and time, which a busy machine may not give, so that a model that only computes long would be ended.
"""

import asyncio
from typing import Final

import psutil

STOPPED_FOR: Final = 6.0  # seconds after which nobody counts on a process that is stopped
LOOK_EVERY: Final = 1.0  # seconds


async def until_stopped(pid: int, *, or_any_below: bool = False) -> bool:
    """Wait until a process has been stopped for `STOPPED_FOR` seconds, and give True; False once it has ended.

    `or_any_below`: or one that it started, or one of theirs. Seconds in which this process did not run itself do not
    count, for the other may have rested along with it.
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
        except psutil.Error:  # it has ended meanwhile
            continue
    return False
