"""Starts of processes that may be called off."""

import asyncio
import contextlib
from asyncio.subprocess import Process
from typing import Any


async def started(*words: str, **how: Any) -> Process:
    """A process, with what `asyncio.create_subprocess_exec` takes. Of a start that is cancelled nothing is left.

    uvloop kills such a process and waits for nobody: a loop that closes then finds it open, and prints errors.
    """
    starting = asyncio.ensure_future(asyncio.create_subprocess_exec(*words, **how))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        await asyncio.wait({starting})
        if starting.exception() is None:
            with contextlib.suppress(ProcessLookupError):
                starting.result().kill()
            await starting.result().wait()
        raise
