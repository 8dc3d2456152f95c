"""Writes the log in a thread of its own, so that a stopped terminal or a slow disk holds up no request."""

import logging
import queue
import sys
import threading
from collections.abc import Sequence
from logging.handlers import RotatingFileHandler
from typing import Final

from pippin.cli.terminal import say

WAITING: Final = 20_000
"""Records that may wait to be written; what comes beyond them is lost, and counted."""

LAST_WORDS: Final = 2.0  # seconds at the end of the process for what still waits


class LogWriter(logging.Handler):
    """Hands records on to handlers that may be slow."""

    def __init__(self, handlers: Sequence[logging.Handler]) -> None:
        super().__init__()
        self._handlers = handlers
        self._records: queue.Queue[logging.LogRecord | None] = queue.Queue(WAITING)
        self._lost = 0
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        # What it speaks of may change before it is written.
        record.msg, record.args = record.getMessage(), None
        try:
            self._records.put_nowait(record)
        except queue.Full:
            self._lost += 1

    def close(self) -> None:
        """Write what waits, if that is possible soon."""
        try:
            self._records.put(None, timeout=LAST_WORDS)
        except queue.Full:
            pass
        else:
            self._thread.join(LAST_WORDS)
        super().close()

    def _write(self) -> None:
        while (record := self._records.get()) is not None:
            self._pass_on(record)
            if self._lost:
                lost, self._lost = self._lost, 0
                text = f"{lost} lines are missing here: they came faster than they could be written."
                self._pass_on(logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, None, None))

    def _pass_on(self, record: logging.LogRecord) -> None:
        for handler in self._handlers:
            if record.levelno >= handler.level:
                handler.handle(record)


class LogFile(RotatingFileHandler):
    """A log file that rotates, and tells once, on stderr, that it cannot be written."""

    _failing = False

    def handleError(self, record: logging.LogRecord) -> None:
        if not self._failing:
            self._failing = True
            say(f"{self.baseFilename} can't be written: {sys.exc_info()[1]}", sys.stderr)


class LogStream(logging.StreamHandler):  # type: ignore[type-arg]  # generic only for type checkers
    """Writes to what `sys.stderr` is at the time: while a bar is shown, what puts lines above it.

    There is nobody to tell that stderr can't be written.
    """

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        pass
