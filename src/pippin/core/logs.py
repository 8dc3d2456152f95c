"""Which log lines are written: ours at the configured level, those of libraries only from warnings up.

Libraries log the addresses that they call, which may contain secrets, and data that clients sent.
"""

import itertools
import logging
import re
from collections import deque
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from asyncio import StreamReader  # workers import this module and not asyncio

OURS: Final = "pippin"
KEPT: Final = 500  # lines
# Bounded, as clients write into log lines: what is sought must not take quadratic time.
_SECRETS: Final = re.compile(
    r"(?<=://)(?:[^\s/:@]{0,200}:[^\s`'\"]{0,200}|[^\s/]{0,200})@|(?<=[?&])([^\s=&?]{1,200}=)[^\s&#`'\"]+"
)
"""User and password of an address, and the values of its query."""


def without_secrets(text: str) -> str:
    """`text` with `***` for what may be a secret of the addresses in it."""
    return _SECRETS.sub(lambda found: f"{found[1]}***" if found[1] else "***@", text)


class RecentLines(logging.Handler):
    """Keeps the last lines in memory, for whoever looks at the running server: each with its number from 0, its time in
    seconds since the epoch, its level and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._numbers = itertools.count()

    def emit(self, record: logging.LogRecord) -> None:
        said = {"level": record.levelname.lower(), "text": record.getMessage()}
        self.lines.append({"number": next(self._numbers), "time": record.created, **said})


RECENT: Final = RecentLines()


def set_level(level: str) -> None:
    """Set the level of our own loggers. `level` is one of logging's names, in any case."""
    logging.getLogger(OURS).setLevel(level.upper())
    logging.getLogger().setLevel(max(logging.WARNING, logging.getLogger(OURS).level))
    # It warns about every malformed form of a client.
    logging.getLogger("python_multipart").setLevel(logging.ERROR)


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
