"""Encodes a run as an answer of Gemini's API, whole or as a stream, and errors in Google's form."""

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from pippin.api.dialects.base import Encoder, RunInfo
from pippin.api.dialects.gemini.content import signature_of
from pippin.api.dialects.shared.openai import finite, text_of
from pippin.core.completion import Completion, object_of
from pippin.core.errors import ErrorKind, ErrorReport
from pippin.core.events import Event, Finished, PartDelta, PartEnded, PartStarted, Token

ID_PREFIX: Final = "gemini-"
STATUS: Final[dict[ErrorKind, tuple[int, str]]] = {
    "authentication": (401, "UNAUTHENTICATED"),
    "permission": (403, "PERMISSION_DENIED"),
    "not_found": (404, "NOT_FOUND"),
    "model_not_found": (404, "NOT_FOUND"),
    # Google finds no method there.
    "method_not_allowed": (404, "NOT_FOUND"),
    "timeout": (504, "DEADLINE_EXCEEDED"),
    "conflict": (409, "ABORTED"),
    "load_failed": (400, "FAILED_PRECONDITION"),
    "rate_limited": (429, "RESOURCE_EXHAUSTED"),
    "cancelled": (499, "CANCELLED"),
    "overloaded": (503, "UNAVAILABLE"),
    "worker_died": (500, "INTERNAL"),
    "internal": (500, "INTERNAL"),
}
"""The words of google.rpc.Code, each with its HTTP status."""
OTHERWISE: Final = (400, "INVALID_ARGUMENT")


class GeminiShape(Struct, frozen=True, kw_only=True):
    """The parts of a request that decide how its answer is encoded."""

    candidates: int = 1
    thoughts: bool = False  # whether reasoning is shown
    logprobs: bool = False
    array: bool = False  # the stream is a JSON array


class CalledFunction(Struct, kw_only=True):
    id: str
    name: str
    args: dict[str, Any]


class AnswerPart(Struct, kw_only=True, omit_defaults=True, rename="camel"):
    text: str | None = None
    thought: bool = False
    function_call: CalledFunction | None = None
    thought_signature: str | None = None


class AnswerContent(Struct, kw_only=True):
    parts: list[AnswerPart]
    role: Literal["model"] = "model"


class ChosenToken(Struct, kw_only=True, rename="camel"):
    token: str
    token_id: int
    log_probability: float


class TopTokens(Struct, kw_only=True):
    candidates: list[ChosenToken]


class LogprobsResult(Struct, kw_only=True, rename="camel"):
    chosen_candidates: list[ChosenToken]
    top_candidates: list[TopTokens]
    log_probability_sum: float


class Candidate(Struct, kw_only=True, omit_defaults=True, rename="camel"):
    content: AnswerContent
    finish_reason: str | None = None
    finish_message: str | None = None  # what the answer does not keep to
    index: int | None = None
    avg_logprobs: float | None = None
    logprobs_result: LogprobsResult | None = None


class UsageMetadata(Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """`candidatesTokenCount` is without thoughts."""

    prompt_token_count: int | None = None
    candidates_token_count: int | None = None
    total_token_count: int | None = None
    thoughts_token_count: int = 0
    cached_content_token_count: int = 0


class GeminiAnswer(Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """The answer to `generateContent`, and each piece of a stream."""

    candidates: list[Candidate]
    usage_metadata: UsageMetadata | None = None
    model_version: str = ""
    response_id: str = ""


class GoogleErrorDetail(Struct, kw_only=True):
    code: int
    message: str
    status: str
    details: list[dict[str, Any]] = []


class GoogleError(Struct, kw_only=True):
    error: GoogleErrorDetail


def status_of(report: ErrorReport) -> tuple[int, str]:
    return STATUS.get(report.kind, OTHERWISE)


def error_of(report: ErrorReport) -> GoogleError:
    """Details are messages of google/rpc/error_details.proto."""
    details: list[dict[str, Any]] = []

    def add(type: str, **fields: Any) -> None:
        details.append({"@type": f"type.googleapis.com/google.rpc.{type}", **fields})

    if report.param is not None:
        add("BadRequest", fieldViolations=[{"field": report.param, "description": report.message}])
    if report.kind == "authentication":
        add("ErrorInfo", reason="API_KEY_INVALID", domain="googleapis.com")
    if report.retry_after is not None:
        add("RetryInfo", retryDelay=f"{report.retry_after:g}s")
    code, status = status_of(report)
    return GoogleError(
        error=GoogleErrorDetail(code=code, message=report.message, status=status, details=details)
    )


def usage_of(finished: Sequence[Finished]) -> UsageMetadata:
    """The usage of the candidates that ended so far, which share their prompt."""
    prompt = finished[0].usage
    completed = sum(each.usage.completion_tokens for each in finished)
    thoughts = sum(each.usage.reasoning_tokens for each in finished)
    return UsageMetadata(
        prompt_token_count=prompt.prompt_tokens,
        candidates_token_count=completed - thoughts,
        total_token_count=prompt.prompt_tokens + completed,
        thoughts_token_count=thoughts,
        cached_content_token_count=prompt.cached_tokens,
    )


def logprobs_of(tokens: Sequence[Token]) -> LogprobsResult:
    def chosen(token: Any) -> ChosenToken:
        return ChosenToken(token=text_of(token.raw), token_id=token.id, log_probability=finite(token.logprob))

    return LogprobsResult(
        chosen_candidates=[chosen(token) for token in tokens],
        log_probability_sum=sum(finite(token.logprob) for token in tokens),
        top_candidates=[TopTokens(candidates=[chosen(other) for other in token.top]) for token in tokens],
    )


class _CandidateReader:
    """Reads the events of one candidate. A call is a part once its arguments are complete; a thought goes along,
    sealed, with the part after it."""

    def __init__(self, index: int, shape: GeminiShape) -> None:
        self._index = index
        self._shape = shape
        self._part = PartStarted(index, 0, "text")
        self._gap = ""
        self._arguments: list[str] = []
        self._thought: list[str] = []
        self._logprobs: list[float] = []  # of the text so far

    def read(self, *events: PartStarted | PartDelta | PartEnded) -> Candidate:
        """What is new; without parts if nothing is."""
        parts, tokens = list[AnswerPart](), list[Token]()
        for event in events:
            match event:
                case PartStarted():
                    self._part, self._gap, self._arguments = event, event.gap, []
                case PartDelta(text=text) if self._part.kind == "tool_call":
                    self._arguments.append(text)
                case PartDelta(text=text) if self._part.kind == "text":
                    tokens += event.tokens
                    if text:
                        text, self._gap = self._gap + text, ""
                        parts.append(self._signed(AnswerPart(text=text)))
                case PartDelta(text=text) if text and self._part.kind == "reasoning":
                    self._thought.append(text)
                    if self._shape.thoughts:
                        parts.append(AnswerPart(text=text, thought=True))
                case PartEnded() if self._part.kind == "tool_call":
                    # Without an object, a limit cut the call.
                    if (arguments := object_of("".join(self._arguments))) is not None:
                        called = CalledFunction(
                            id=self._part.id or "", name=self._part.name or "", args=arguments
                        )
                        parts.append(self._signed(AnswerPart(function_call=called)))
        shown = None
        if tokens and self._shape.logprobs:
            self._logprobs += [finite(token.logprob) for token in tokens]
            shown = logprobs_of(tokens)
            parts = parts or [AnswerPart(text="")]
        return Candidate(content=AnswerContent(parts=parts), index=self._index, logprobs_result=shown)

    def ended(self, candidate: Candidate, finished: Finished) -> Candidate:
        # A turn without a part is dropped by Google's clients, and the conversation with it.
        candidate.content.parts = candidate.content.parts or [AnswerPart(text="")]
        candidate.finish_reason = "MAX_TOKENS" if finished.reason == "length" else "STOP"
        candidate.finish_message = " ".join(finished.warnings) or None
        if self._logprobs:
            candidate.avg_logprobs = sum(self._logprobs) / len(self._logprobs)
        return candidate

    def _signed(self, part: AnswerPart) -> AnswerPart:
        if self._thought:
            part.thought_signature = signature_of("".join(self._thought))
            self._thought = []
        return part


class GeminiEncoder(Encoder):
    """See `Encoder`. A stream is server-sent events, or the elements of a JSON array."""

    def __init__(self, shape: GeminiShape, run: RunInfo) -> None:
        self._shape = shape
        self._run = run
        self._readers = [_CandidateReader(index, shape) for index in range(shape.candidates)]
        self._finished: list[Finished] = []
        self._separator = b"["

    def event(self, event: Event, request: int = 0) -> bytes:
        match event:
            case PartStarted() | PartDelta() | PartEnded():
                candidate = self._readers[event.choice].read(event)
                return self._framed(self._answer([candidate])) if candidate.content.parts else b""
            case Finished():
                self._finished.append(event)
                reader = self._readers[event.choice]
                return self._framed(self._answer([reader.ended(reader.read(), event)], self._finished))
            case _:
                return b""

    def keep_alive(self) -> bytes:
        # Google's clients take a comment for the beginning of an error.
        return b"\n"

    def failed(self, report: ErrorReport) -> bytes:
        return self._framed(error_of(report))

    def end(self) -> bytes:
        if not self._shape.array:
            return b""
        return b"[]" if self._separator == b"[" else b"]"

    def whole(self, completions: Sequence[Completion]) -> bytes:
        candidates, finished = list[Candidate](), list[Finished]()
        for index, choice in enumerate(completions[0].choices):
            reader = self._readers[index]
            finished.append(choice.finished or Finished(index, "stop"))
            candidates.append(reader.ended(reader.read(*choice.events(index)), finished[-1]))
        return msgspec.json.encode(self._answer(candidates, finished))

    def _answer(self, candidates: list[Candidate], finished: Sequence[Finished] = ()) -> GeminiAnswer:
        return GeminiAnswer(
            candidates=candidates,
            usage_metadata=usage_of(finished) if finished else None,
            model_version=self._run.model,
            response_id=ID_PREFIX + self._run.id,
        )

    def _framed(self, answer: GeminiAnswer | GoogleError) -> bytes:
        data = msgspec.json.encode(answer)
        if not self._shape.array:
            return b"data: %b\n\n" % data
        separator, self._separator = self._separator, b",\n"
        return separator + data
