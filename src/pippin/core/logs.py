"""Whose log lines are written: our own at the level that was asked for, those of libraries as warnings at most.

Libraries log the addresses that they call, which may hold secrets, and what clients sent.
"""

import logging
from asyncio import StreamReader
from collections.abc import AsyncIterator
from typing import Final

OURS: Final = "pippin"


def set_level(level: str) -> None:
    """`level` is one of logging's, in any case: that of our own loggers."""
    logging.getLogger(OURS).setLevel(level.upper())
    logging.getLogger().setLevel(max(logging.WARNING, logging.getLogger(OURS).level))
    logging.getLogger("python_multipart").setLevel(
        logging.ERROR
    )  # it warns of every form that a client damaged


LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
LONGEST: Final = 64 << 10  # bytes of a line


async def lines(output: StreamReader) -> AsyncIterator[bytes]:
    """What another process prints, a line at a time and without its end, until it closes its end."""
    while True:
        try:
            data = await output.readline()
        except ValueError:  # longer than the reader's buffer, which it has dropped
            continue
        if not data:
            return
        yield data.rstrip(b"\r\n")[:LONGEST]
