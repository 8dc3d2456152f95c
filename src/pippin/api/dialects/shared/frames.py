"""Server-sent events: their media type, and how named events are written."""

from typing import Any, Final

import msgspec
from msgspec import Struct


class Closed(Struct, kw_only=True, forbid_unknown_fields=True):
    pass


EVENTS: Final = "text/event-stream; charset=utf-8"
COMMENT: Final = b": keep-alive\n\n"
DONE: Final = b"data: [DONE]\n\n"

_encode = msgspec.json.Encoder().encode


def event_frame(name: str, payload: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode(payload))


def typed_frame(type: str, **fields: Any) -> bytes:
    """An event whose name is also in its body."""
    return event_frame(type, {"type": type, **fields})
