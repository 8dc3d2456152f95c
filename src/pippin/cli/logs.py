"""The server's log: text or one JSON object per line, on stderr and in a file.

A separate thread writes it, so that a stopped terminal or a slow disk does not delay requests.
"""

import contextlib
import json
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Sequence
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final, TextIO

from pippin.cli.terminal import say
from pippin.config.options.server import ServerOptions
from pippin.core import logs

FILE_BYTES: Final = 50_000_000
FILES_KEPT: Final = 5
SPEAKERS: Final = (logs.OURS, "uvicorn", "asyncio", "py")
"""Loggers that may write to the log, by the first part of their names. `py` is for Python's own warnings."""
EXTRAS: Final = ("request_id", "model", "status", "ms")
"""The attributes of records in JSON lines. Records of the access log also have `facts` about the answer."""
WAITING: Final = 20_000
"""Records that may wait to be written; further records are dropped and counted."""

TEXT: Final = logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", datefmt="%Y-%m-%d %H:%M:%S")
LAST_WORDS: Final = 2.0  # seconds for writing the waiting records when the process ends


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: record.__dict__[name] for name in EXTRAS if record.__dict__.get(name) is not None}
        line |= record.__dict__.get("facts", {})
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class LogWriter(logging.Handler):
    """Passes records to handlers that may be slow, in its own thread."""

    def __init__(self, handlers: Sequence[logging.Handler]) -> None:
        super().__init__()
        self._handlers = handlers
        self._records: queue.Queue[logging.LogRecord | None] = queue.Queue(WAITING)
        self._lost = 0
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        # Format the message now: its arguments may change before it is written.
        record.msg, record.args = logs.without_secrets(record.getMessage()), None
        try:
            self._records.put_nowait(record)
        except queue.Full:
            self._lost += 1

    def close(self) -> None:
        """Write the waiting records, for at most a few seconds."""
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
    """A rotating log file that reports once, on stderr, when it can't be written. Where another program has moved it
    away, as logrotate does, it begins a new one."""

    _failing = False

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):
            if self.stream is not None and not self._holds(self.stream):
                self.stream.close()
                self.stream = self._open()
        super().emit(record)

    def _holds(self, stream: TextIO) -> bool:
        """Whether the file of this name is still the one that is open."""
        path = Path(self.baseFilename)
        return path.exists() and os.path.samestat(path.stat(), os.fstat(stream.fileno()))

    def handleError(self, record: logging.LogRecord) -> None:
        if not self._failing:
            self._failing = True
            say(f"{self.baseFilename} can't be written: {sys.exc_info()[1]}", sys.stderr)


class LogStream(logging.StreamHandler):  # type: ignore[type-arg]  # generic only for type checkers
    """Writes to the current `sys.stderr`, which is replaced while a bar is shown, so that lines appear above it.

    Errors are ignored: there is no place to report that stderr can't be written.
    """

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        pass


def configure_logging(options: ServerOptions) -> None:
    """Log to stderr, to memory, and to the file that the options name. Raises `OSError` if the file can't be opened."""
    handlers: list[logging.Handler] = [LogStream(), logs.RECENT]
    if options.log_file:
        handlers.append(LogFile(options.log_file, maxBytes=FILE_BYTES, backupCount=FILES_KEPT))
    for handler in handlers:
        handler.setFormatter(JsonFormatter() if options.log_format == "json" else TEXT)
    writer = LogWriter(handlers)
    writer.addFilter(_may_speak)
    logging.basicConfig(handlers=[writer], force=True)
    logs.set_level(options.log_level)


def _may_speak(record: logging.LogRecord) -> bool:
    """Lets only `SPEAKERS` log: other libraries, such as MCP clients, put addresses into their warnings."""
    return record.name.partition(".")[0] in SPEAKERS
