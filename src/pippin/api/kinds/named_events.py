"""The common part of the event streams of endpoints other than generation."""

from collections.abc import Sequence
from typing import Any

from pippin.api.dialects.shared.frames import COMMENT, event_frame
from pippin.api.dialects.shared.openai import error_body
from pippin.core.errors import ErrorReport
from pippin.core.events import Accepted


class NamedEvents:
    """Events in OpenAI's form: the name is also in the body, and a failure is the event `error`."""

    def start(self, accepted: Sequence[Accepted]) -> bytes:
        return b""

    def keep_alive(self) -> bytes:
        return COMMENT

    def failed(self, report: ErrorReport) -> bytes:
        return event_frame("error", error_body(report))

    def end(self) -> bytes:
        return b""


def named_event(name: str, payload: dict[str, Any]) -> bytes:
    return event_frame(name, {"type": name, **payload})
