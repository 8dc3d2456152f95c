"""Turns tasks into scripted jobs: finds the rule, counts tokens, refuses what does not fit."""

from dataclasses import dataclass

import msgspec

from pippin.core.conversation import Text
from pippin.core.errors import ServerError
from pippin.core.events import Accepted, Counted, Event
from pippin.core.models import Capabilities, ModelInfo, WorkerSpec
from pippin.core.requests import GenerationRequest
from pippin.core.tasks import CountTokens, Generate, Task
from pippin.engines.scripted import tokenizer


@dataclass(frozen=True)
class ScriptedJob:
    id: str
    accepted: Accepted
    request: GenerationRequest
    pieces: tuple[str, ...]


class ScriptedPreparer:
    def __init__(self, spec: WorkerSpec) -> None:
        self.info: ModelInfo = msgspec.structs.replace(
            spec.info,
            context_window=spec.info.context_window or 4096,
            capabilities=Capabilities(chat=True, tools=True, reasoning=True),
        )

    def prepare(self, id: str, task: Task) -> ScriptedJob | tuple[Event, ...]:
        match task:
            case Generate(request):
                text = last_text(request)
                accepted = Accepted(len(tokenizer.pieces(text)))
                return ScriptedJob(id, accepted, request, tuple(tokenizer.pieces(text)))
            case CountTokens(request):
                return (Counted(len(tokenizer.pieces(last_text(request)))),)
            case _:
                raise ServerError("unsupported", "The scripted model does not do this.")


def last_text(request: GenerationRequest) -> str:
    if isinstance(request.prompt, str):
        return request.prompt
    for message in reversed(request.messages or ()):
        if message.role == "user":
            return "".join(part.text for part in message.parts if isinstance(part, Text))
    return ""


def open_preparer(spec: WorkerSpec) -> ScriptedPreparer:
    return ScriptedPreparer(spec)
