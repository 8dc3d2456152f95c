"""What a worker prints, brought into the server's log under the model's name."""

import asyncio
import logging
from typing import Final, Literal

import msgspec

from pippin.core.decoding import JsonDecoder, json_decoder
from pippin.core.link import request_id

log = logging.getLogger("pippin.worker")

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
LONGEST: Final = 64 << 10  # bytes of a line


class WorkerLine(msgspec.Struct, frozen=True):
    """A line of `worker.logs`; what other code prints is no such object and logged as it is."""

    level: Literal["debug", "info", "warning", "error", "critical"]
    name: str
    message: str
    request: str | None = None
    trace: str | None = None


async def forward_log(output: asyncio.StreamReader, model: str) -> None:
    """Log each line until the worker closes its end."""
    decoder = json_decoder(WorkerLine)
    while True:
        try:
            data = await output.readline()
        except ValueError:  # longer than the reader's buffer, which it has dropped
            continue
        if not data:
            return
        log_line(data.rstrip(b"\r\n")[:LONGEST], model, decoder)


def log_line(data: bytes, model: str, decoder: JsonDecoder[WorkerLine]) -> None:
    try:
        line = decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        if data.strip():
            log.info("%s: %s", model, data.decode(errors="replace"), extra={"model": model})
        return
    text = line.message if line.trace is None else f"{line.message}\n{line.trace}"
    request = None if line.request is None else request_id(line.request)
    prefix = model if request is None else f"{model} [{request}]"
    extra = {"model": model, "request_id": request}
    log.log(LEVELS[line.level], "%s: %s", prefix, text, extra=extra)
