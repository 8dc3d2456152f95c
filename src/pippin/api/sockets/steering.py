"""What a client says while a response is being made: `response.steer`.

The response ends at once as `steered`, and another goes on from it with the client's words. If it has called tools of
the client, the words wait until it is complete, and for the results of the calls.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal
from uuid import uuid4

import msgspec
from msgspec import Meta, Struct

from pippin.api.answers.answer import Answer
from pippin.api.dialects.responses.answer import STEERED
from pippin.api.dialects.responses.items import parts_of
from pippin.api.stored_responses.saving import SavingEncoder
from pippin.core.decoding import convert
from pippin.core.errors import ErrorReport, ServerError

STEER: Final = "response.steer"
MOST_STEERS: Final = 16  # that wait for one response
ENDED: Final = ErrorReport(kind="cancelled", message="The client steered the response.", code=STEERED)


class UserMessage(Struct, kw_only=True, forbid_unknown_fields=True):
    role: Literal["user"]
    content: str | list[dict[str, Any]]
    type: Literal["message"] = "message"
    id: str | None = None
    status: str | None = None


class SteerEvent(Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["response.steer"]
    previous_response_id: str
    input: str | Annotated[list[UserMessage], Meta(min_length=1)]


@dataclass(frozen=True)
class Steer:
    """Words for a response, accepted under an id."""

    id: str
    response: str
    input: Any  # as the client gave it
    size: int  # in bytes, of the event that brought it

    @property
    def named(self) -> dict[str, Any]:
        return {"id": self.id, "previous_response_id": self.response}


class Steered:
    """A response that is being made, and what was said to it so far."""

    def __init__(self, asked: dict[str, Any], encoder: SavingEncoder, answer: Answer) -> None:
        self.id = encoder.response().id
        self.steers: list[Steer] = []
        self._asked = asked
        self._encoder = encoder
        self._answer = answer
        self._frames: list[bytes] = []

    def take(self, event: dict[str, Any], size: int, hold: Callable[[int], bool]) -> None:
        """Accept or refuse a `response.steer` of `size` bytes for this response; `hold` finds room to keep them."""
        try:
            given = convert(event, SteerEvent).input
            for number, message in enumerate(given if isinstance(given, list) else ()):
                parts_of(message.content, f"input[{number}].content")
        except (msgspec.ValidationError, ServerError) as error:
            self._frames.append(refusal(event, "invalid_input", str(error), self._encoder))
            return
        if self._asked.get("conversation") or self._asked.get("context_management"):
            why = "A response that joins a conversation or compacts it by itself can't be steered."
            self._frames.append(refusal(event, "steering_not_supported", why, self._encoder))
        elif len(self.steers) >= MOST_STEERS or not hold(size):
            why = "Too much waits for this response already."
            self._frames.append(refusal(event, "too_many_pending_steers", why, self._encoder))
        else:
            steer = Steer(f"steer_{uuid4().hex}", self.id, event["input"], size)
            self.steers.append(steer)
            self._frames.append(self._encoder.told("response.steer.accepted", steer=steer.named))
            if not self._encoder.required_input():
                self._answer.end(ENDED)

    def frames(self) -> bytes:
        """The events that were not sent yet."""
        frames, self._frames = b"".join(self._frames), []
        return frames

    def pending(self) -> bytes:
        """The events that tell which results the accepted words wait for; none if they wait for none."""
        required = self._encoder.required_input()
        if not required:
            return b""
        waits = {"reason": "waiting_for_required_input", "required_input": required}
        return b"".join(
            self._encoder.told("response.steer.pending", steer=steer.named, **waits) for steer in self.steers
        )

    def successor(self) -> dict[str, Any]:
        """The request that goes on from the response; the accepted words are yet to be put in front of its input."""
        return self._asked | {"input": [], "previous_response_id": self.id}


def refusal(event: dict[str, Any], code: str, why: str, encoder: SavingEncoder | None = None) -> bytes:
    """The event that gives the words back; `encoder` is that of the response, if there is one."""
    steer = {name: event[name] for name in ("id", "previous_response_id", "input") if name in event}
    error = {"type": "invalid_request_error", "code": code, "message": why}
    if encoder is not None:
        return encoder.told("response.steer.failed", steer=steer, error=error)
    fields = {"type": "response.steer.failed", "sequence_number": 0, "steer": steer, "error": error}
    return b"data: " + msgspec.json.encode(fields) + b"\n\n"
