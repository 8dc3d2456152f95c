"""Which log lines are written: ours at the configured level, those of libraries only from warnings up.

Libraries log the addresses that they call, which may contain secrets, and data that clients sent.
"""

import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from asyncio import StreamReader  # workers import this module and not asyncio

OURS: Final = "pippin"


def set_level(level: str) -> None:
    """Set the level of our own loggers. `level` is one of logging's names, in any case."""
    logging.getLogger(OURS).setLevel(level.upper())
    logging.getLogger().setLevel(max(logging.WARNING, logging.getLogger(OURS).level))
    logging.getLogger("python_multipart").setLevel(
        logging.ERROR
    )  # it warns about every malformed form of a client


LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
LONGEST: Final = 64 << 10  # bytes of a line


async def lines(output: "StreamReader") -> AsyncIterator[bytes]:
    """The lines that another process prints, without line ends, until it closes its output."""
    while True:
        try:
            data = await output.readline()
        except ValueError:  # longer than the reader's buffer, which is dropped
            continue
        if not data:
            return
        yield data.rstrip(b"\r\n")[:LONGEST]
