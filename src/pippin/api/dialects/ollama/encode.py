"""Encodes events as the lines of `/api/chat` and `/api/generate`, and errors in Ollama's form."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from pippin.api.dialects.base import Encoder, RunInfo
from pippin.api.dialects.shared.openai import TokenLogprob, logprobs_of, warnings_of
from pippin.core.completion import CompletedPart, Completion, object_of
from pippin.core.errors import ErrorReport
from pippin.core.events import (
    Accepted,
    Event,
    Failed,
    Finished,
    FinishReason,
    PartDelta,
    PartEnded,
    PartStarted,
    Token,
)

LINES: Final = "application/x-ndjson"
ID_PREFIX: Final = "ollama-"
NANOSECONDS: Final = 1_000_000  # in a millisecond

DONE_REASON: Final[dict[FinishReason, str]] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "stop",
}


class OllamaShape(Struct, frozen=True, kw_only=True):
    """The parts of a body that decide how its answer is encoded."""

    model: str  # the requested name, which answers repeat
    chat: bool  # answers hold a `message` instead of a `response`
    thinking: bool = True  # whether the model's reasoning may be shown
    logprobs: bool = False


class CalledTool(Struct, kw_only=True):
    index: int
    name: str
    arguments: dict[str, Any]


class MadeCall(Struct, kw_only=True):
    id: str
    function: CalledTool


class AnswerMessage(Struct, kw_only=True):
    role: str = "assistant"
    content: str = ""
    thinking: str | UnsetType = UNSET
    tool_calls: list[MadeCall] | UnsetType = UNSET


class AnswerLine(Struct, kw_only=True):
    """One line of a stream, or a whole answer. Durations are in nanoseconds."""

    model: str
    created_at: str
    message: AnswerMessage | UnsetType = UNSET
    response: str | UnsetType = UNSET
    thinking: str | UnsetType = UNSET
    done: bool = False
    done_reason: str | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET
    logprobs: list[TokenLogprob] | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET


class OllamaError(Struct, kw_only=True):
    error: str


def now() -> str:
    """The current time in Ollama's form: RFC 3339, in UTC."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


class OllamaEncoder(Encoder):
    """See `Encoder`. A tool call is sent as one line when its arguments are complete."""

    def __init__(self, shape: OllamaShape, run: RunInfo) -> None:
        self._shape = shape
        self._started = time.monotonic()
        self._accepted: float | None = None
        self._part: PartStarted | None = None
        self._arguments: list[str] = []
        self._calls = 0

    def start(self, accepted: Sequence[Accepted]) -> bytes:
        self._accepted = time.monotonic()
        return b""

    def event(self, event: Event, request: int = 0) -> bytes:
        match event:
            case Failed(report):
                return self.failed(report)
            case PartStarted(choice=0):
                self._part, self._arguments = event, []
                return self._delta(PartDelta(0, event.index, event.gap))
            case PartDelta(choice=0):
                return self._delta(event)
            case PartEnded(choice=0) if self._part is not None and self._part.kind == "tool_call":
                calls = self._called(self._part, "".join(self._arguments))
                return self._line(AnswerMessage(tool_calls=calls)) if calls else b""
            case Finished(choice=0):
                return self._encoded(self._ended(self._bare(AnswerMessage()), event))
            case _:
                return b""

    def keep_alive(self) -> bytes:
        return self._line(AnswerMessage())

    def failed(self, report: ErrorReport) -> bytes:
        return msgspec.json.encode(OllamaError(error=report.message)) + b"\n"

    def whole(self, completions: Sequence[Completion]) -> bytes:
        choice = completions[0].choices[0]
        message = AnswerMessage(content=choice.text("text"))
        if self._shape.thinking and (thought := choice.text("reasoning")):
            message.thinking = thought
        called = (self._called(part, part.text) for part in choice.parts if part.kind == "tool_call")
        if calls := [call for each in called for call in each]:
            message.tool_calls = calls
        line = self._bare(message)
        if self._shape.logprobs:
            line.logprobs = logprobs_of(choice.tokens("text"))
        return msgspec.json.encode(self._ended(line, choice.finished or Finished(0, "stop")))

    def _delta(self, delta: PartDelta) -> bytes:
        kind = self._part.kind if self._part is not None else "text"
        if kind == "tool_call":
            self._arguments.append(delta.text)
            return b""
        if not (delta.text or delta.tokens):
            return b""
        if kind == "text":
            return self._line(AnswerMessage(content=delta.text), delta.tokens)
        if kind == "reasoning" and self._shape.thinking:
            return self._line(AnswerMessage(thinking=delta.text), delta.tokens)
        return b""

    def _called(self, part: PartStarted | CompletedPart, text: str) -> list[MadeCall]:
        """The call, if its arguments are complete: Ollama's are an object, which half of a text is not."""
        arguments = object_of(text)
        if arguments is None:
            return []
        called = CalledTool(index=self._calls, name=part.name or "", arguments=arguments)
        self._calls += 1
        return [MadeCall(id=part.id or f"call_{called.index}", function=called)]

    def _line(self, message: AnswerMessage, tokens: tuple[Token, ...] = ()) -> bytes:
        line = self._bare(message)
        if self._shape.logprobs and tokens:
            line.logprobs = logprobs_of(tokens)
        return self._encoded(line)

    def _bare(self, message: AnswerMessage) -> AnswerLine:
        line = AnswerLine(model=self._shape.model, created_at=now())
        if self._shape.chat:
            line.message = message
        else:
            line.response, line.thinking = message.content, message.thinking
        return line

    def _ended(self, line: AnswerLine, finished: Finished) -> AnswerLine:
        ended, usage, times = time.monotonic(), finished.usage, finished.timings
        line.done = True
        line.done_reason = DONE_REASON[finished.reason]
        line.warnings = warnings_of([finished])
        line.total_duration = round((ended - self._started) * 1e9)
        line.load_duration = round(((self._accepted or self._started) - self._started) * 1e9)
        line.prompt_eval_count = usage.prompt_tokens
        line.prompt_eval_duration = round(times.prefill * NANOSECONDS)
        line.eval_count = usage.completion_tokens
        line.eval_duration = round(times.decode * NANOSECONDS)
        return line

    def _encoded(self, line: AnswerLine) -> bytes:
        return msgspec.json.encode(line) + b"\n"
