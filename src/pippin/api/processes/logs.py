"""The log of an API process beside the first: lines on stderr, which the first one writes into the server's log."""

import asyncio
import json
import logging
import sys
from typing import Any, Final, Literal

import msgspec

from pippin.core import logs
from pippin.core.decoding import json_decoder
from pippin.core.logs import LEVELS, lines

EXTRAS: Final = ("request_id", "status", "ms", "facts")
SPEAKERS: Final = (logs.OURS, "asyncio")


class Line(msgspec.Struct, frozen=True):
    """One record. Other output of the process is no such object, and is logged as it is."""

    level: Literal["debug", "info", "warning", "error", "critical"]
    name: str
    message: str
    trace: str | None = None
    extra: dict[str, Any] = {}


class LineFormatter(logging.Formatter):
    """Formats a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "level": record.levelname.lower(),
            "name": record.name,
            "message": record.getMessage(),
            "extra": {name: record.__dict__[name] for name in EXTRAS if name in record.__dict__},
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure_logging(level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    handler.addFilter(lambda record: record.name.partition(".")[0] in SPEAKERS)
    logging.basicConfig(handlers=[handler], force=True)
    logs.set_level(level)
    # The first process has logged what the options mean for access.
    logging.getLogger("pippin.api.access.guards").setLevel(logging.ERROR)


async def forward(output: asyncio.StreamReader, number: int) -> None:
    """Log each line with the number of its process, until the process closes its output."""
    decoder = json_decoder(Line)
    async for data in lines(output):
        try:
            line = decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            if not data.strip():
                continue
            line = Line("info", __name__, data.decode(errors="replace"))
        text = line.message if line.trace is None else f"{line.message}\n{line.trace}"
        extra = {**line.extra, "api_process": number}
        logging.getLogger(line.name).log(LEVELS[line.level], "[%d] %s", number, text, extra=extra)
