"""Ids on the link to a worker: the request's own and a serial number, so that one may be used again at once."""

from typing import Final

SERIAL_MARK: Final = "#"


def request_id(wire_id: str) -> str:
    return wire_id.rpartition(SERIAL_MARK)[0]
