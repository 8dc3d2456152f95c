"""The common part of the event streams of endpoints other than generation."""

from pippin.api.dialects.base import StreamEncoder
from pippin.api.dialects.shared.frames import event_frame
from pippin.api.dialects.shared.openai import error_body
from pippin.core.errors import ErrorReport


class NamedEvents(StreamEncoder):
    """Events in OpenAI's form: the name is also in the body, and a failure is the event `error`."""

    def failed(self, report: ErrorReport) -> bytes:
        return event_frame("error", error_body(report))
