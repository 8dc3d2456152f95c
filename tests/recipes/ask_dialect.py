"""An API that nobody needs: a question in, lines of text out. `test_dialect` serves it as the recipe says."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Struct

from pippin.api.dialects.base import DecodeContext, Decoded, Dialect, Encoder, RunInfo
from pippin.api.dialects.shared.fields import Contract, about, invalid
from pippin.api.dialects.shared.frames import event_frame
from pippin.core.completion import Completion
from pippin.core.conversation import Message, Text
from pippin.core.errors import ErrorReport
from pippin.core.events import Accepted, Event, Finished, PartDelta
from pippin.core.requests import GenerationRequest

ID_PREFIX = "ask-"


class Question(Struct, kw_only=True):
    question: Annotated[str, about("What is asked.")]
    model: Annotated[str, about("Who answers.")] = "default"
    stream: Annotated[bool, about("Send the reply line by line.")] = False


class Reply(Struct, kw_only=True):
    id: str
    reply: str
    tokens: int


class Said(Struct):
    text: str


class Problem(Struct):
    problem: str
    field: str | None


class AskEncoder(Encoder):
    def __init__(self, run: RunInfo) -> None:
        self._id = ID_PREFIX + run.id
        self._said: list[str] = []

    def start(self, accepted: Sequence[Accepted]) -> bytes:
        return event_frame("began", {"id": self._id})

    def event(self, event: Event, request: int = 0) -> bytes:
        match event:
            case PartDelta(text=text):
                self._said.append(text)
                return event_frame("said", Said(text))
            case Finished(usage=usage):
                reply = Reply(id=self._id, reply="".join(self._said), tokens=usage.completion_tokens)
                return event_frame("done", reply)
            case _:
                return b""

    def failed(self, report: ErrorReport) -> bytes:
        return event_frame("failed", Problem(report.message, report.param))

    def whole(self, completions: Sequence[Completion]) -> bytes:
        [choice] = completions[0].choices
        tokens = choice.finished.usage.completion_tokens
        return msgspec.json.encode(Reply(id=self._id, reply=choice.text("text"), tokens=tokens))


class AskDialect(Dialect[None]):
    name = "ask"
    path = "/ask"
    id_prefix = ID_PREFIX
    contract = Contract(
        Question,
        accepted={"mood": "Answers have none."},
        refused={"answer": "it is what the server gives."},
    )
    answer = Reply
    failure = Problem

    def decode(self, body: bytes, context: DecodeContext) -> Decoded[None]:
        fields, ignored = self.contract.decode(body)
        if not fields.question:
            raise invalid("question", "must not be empty.")
        messages = (Message("user", (Text(fields.question),)),)
        request = GenerationRequest(model=fields.model, messages=messages)
        return Decoded(requests=(request,), shape=None, stream=fields.stream, ignored=ignored)

    def encoder(self, shape: None, run: RunInfo) -> AskEncoder:
        return AskEncoder(run)

    def error(self, report: ErrorReport, request_id: str) -> bytes:
        return msgspec.json.encode(Problem(report.message, report.param))


dialect = AskDialect()
