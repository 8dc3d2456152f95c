"""Processes that may be called off as they start, and their ends."""

import asyncio
from asyncio.subprocess import Process
from contextlib import suppress
from typing import Any


async def started(*words: str, **how: Any) -> Process:
    """A process, with what `asyncio.create_subprocess_exec` takes. Of a start that is cancelled nothing is left: uvloop
    kills such a process and waits for nobody, and a loop that closes then finds it open and prints errors."""
    starting = asyncio.ensure_future(asyncio.create_subprocess_exec(*words, **how))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        await asyncio.wait({starting})
        if starting.exception() is None:
            await ended(starting.result())
        raise


async def ended(process: Process) -> None:
    """End a process at once."""
    with suppress(ProcessLookupError):
        process.kill()
    await asyncio.shield(process.communicate())  # drain its pipes, which asyncio waits for
