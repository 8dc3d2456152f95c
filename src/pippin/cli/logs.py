"""The form of the server's log: text for people or one JSON object a line, on stderr and in a file."""

import json
import logging
import time
from typing import Final

from pippin.cli.log_writer import LogFile, LogStream, LogWriter
from pippin.config.options.server import ServerOptions
from pippin.core import logs

FILE_BYTES: Final = 50_000_000
FILES_KEPT: Final = 5
SPEAKERS: Final = (logs.OURS, "uvicorn", "asyncio", "py")
"""Who writes to the log: the first parts of the names of loggers. `py` is for Python's own warnings."""
EXTRAS: Final = ("request_id", "model", "status", "ms")
"""The attributes of records that JSON lines show. Records of the access log carry `facts` of the answer, too."""


class TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", datefmt="%Y-%m-%d %H:%M:%S")


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


def configure_logging(options: ServerOptions) -> None:
    """Log to stderr, and to the file that the options name. Raises `OSError` if that cannot be opened."""
    handlers: list[logging.Handler] = [LogStream()]
    if options.log_file:
        handlers.append(LogFile(options.log_file, maxBytes=FILE_BYTES, backupCount=FILES_KEPT))
    for handler in handlers:
        handler.setFormatter(JsonFormatter() if options.log_format == "json" else TextFormatter())
    writer = LogWriter(handlers)
    writer.addFilter(_may_speak)
    logging.basicConfig(handlers=[writer], force=True)
    logs.set_level(options.log_level)


def _may_speak(record: logging.LogRecord) -> bool:
    """Other libraries, such as those that call MCP servers, put addresses into their warnings too."""
    return record.name.partition(".")[0] in SPEAKERS
