"""Copies what a worker prints into the server's log, under the model's name."""

import asyncio
import logging
from typing import Literal

import msgspec

from pippin.core.decoding import JsonDecoder, json_decoder
from pippin.core.link import request_id
from pippin.core.logs import LEVELS, lines

log = logging.getLogger("pippin.worker")


class WorkerLine(msgspec.Struct, frozen=True):
    """A line written by `worker.logs`. Other output does not parse as this and is logged as it is."""

    level: Literal["debug", "info", "warning", "error", "critical"]
    name: str
    message: str
    request: str | None = None
    trace: str | None = None


async def forward_log(output: asyncio.StreamReader, model: str) -> None:
    """Log each line until the worker closes its output."""
    decoder = json_decoder(WorkerLine)
    async for data in lines(output):
        log_line(data, model, decoder)


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
