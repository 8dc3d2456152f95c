"""Encodes events as the chunks and answers of Completions, with the legacy form of log probabilities."""

import codecs
from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from pippin.api.dialects.base import Encoder, RunInfo
from pippin.api.dialects.shared.openai import (
    STOPPED,
    AnswerHead,
    ChunkEncoder,
    StreamShape,
    TimingsBody,
    UsageBody,
    finite,
    text_of,
    timings_body,
    usage_body,
    warnings_of,
)
from pippin.core.completion import CompletedChoice, Completion
from pippin.core.events import Event, Finished, FinishReason, PartDelta, Progress, PromptEcho, Token

_encode = msgspec.json.encode


ID_PREFIX: Final = "cmpl-"


class CompletionsShape(Struct, frozen=True, kw_only=True):
    stream: StreamShape = field(default_factory=StreamShape)
    n: int = 1
    requests: int = 1
    logprobs: bool = False


class LegacyLogprobs(Struct, kw_only=True):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(Struct, kw_only=True):
    index: int
    text: str
    logprobs: LegacyLogprobs | None
    finish_reason: str | None


class TextCompletion(Struct, kw_only=True):
    id: str
    created: int
    model: str
    choices: list[TextChoice]
    usage: UsageBody
    system_fingerprint: str
    timings: TimingsBody | None = None
    warnings: list[str] | UnsetType = UNSET
    object: Literal["text_completion"] = "text_completion"


class LogprobWriter:
    """Lists the tokens of one choice with their offsets in its text."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def write(self, tokens: Iterable[Token]) -> LegacyLogprobs:
        body = LegacyLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        for token in tokens:
            body.tokens.append(_spelled(token.raw))
            body.text_offset.append(self._offset)
            self._offset += len(self._decoder.decode(token.raw))
            # The first token of a prompt has no context, so its log probability is null, as in OpenAI's API.
            if token.logprob is None:
                body.token_logprobs.append(None)
                body.top_logprobs.append(None)
            else:
                body.token_logprobs.append(finite(token.logprob))
                body.top_logprobs.append({_spelled(other.raw): finite(other.logprob) for other in token.top})
        return body


def _spelled(raw: bytes) -> str:
    text = text_of(raw)
    if "\ufffd" not in text:
        return text
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


class CompletionsEncoder(ChunkEncoder, Encoder):
    """See `Encoder`. Choices are numbered across all requests."""

    def __init__(self, shape: CompletionsShape, run: RunInfo) -> None:
        self._about = AnswerHead(
            id=ID_PREFIX + run.id,
            created=run.created,
            model=run.model,
            system_fingerprint=run.fingerprint,
        )
        answers = shape.n * shape.requests
        super().__init__(
            "text_completion", self._about, shape.stream, requests=shape.requests, choices=answers
        )
        self._shape = shape
        self._writers = [LogprobWriter() for _ in range(answers)]

    def event(self, event: Event, request: int = 0) -> bytes:
        first = request * self._shape.n
        match event:
            case PartDelta(choice, _, text, tokens, completed):
                self._completed[first + choice] = completed or self._completed[first + choice]
                return self._chunk(first + choice, text, tokens) if text or tokens else b""
            case PromptEcho(text, tokens):
                return b"".join(self._chunk(first + choice, text, tokens) for choice in range(self._shape.n))
            case Progress():
                return self._prompt_progress(event, request)
            case Finished(choice, reason):
                self._finished[request].append(event)
                self._completed[first + choice] = event.usage.completion_tokens
                return self._chunk(first + choice, "", (), reason, self._tail_of_choice(event))
            case _:
                return b""

    def whole(self, completions: Sequence[Completion]) -> bytes:
        finished = [
            [choice.finished for choice in completion.choices if choice.finished is not None]
            for completion in completions
        ]
        choices = [
            self._answer(request * self._shape.n + number, choice, completion.echo)
            for request, completion in enumerate(completions)
            for number, choice in enumerate(completion.choices)
        ]
        return _encode(
            TextCompletion(
                **self._about,
                choices=choices,
                usage=usage_body([[each.usage for each in request] for request in finished]),
                timings=timings_body(finished[0]),
                warnings=warnings_of(each for request in finished for each in request),
            )
        )

    def _prompt_progress(self, progress: Progress, request: int) -> bytes:
        choice = b'{"index":%d,"text":"","logprobs":null,"finish_reason":null}' % (request * self._shape.n)
        return self._progress(request, choice, progress)

    def _chunk(
        self,
        index: int,
        text: str,
        tokens: tuple[Token, ...],
        reason: FinishReason | None = None,
        tail: bytes = b"",
    ) -> bytes:
        logprobs = b"null"
        if self._shape.logprobs and reason is None:
            logprobs = _encode(self._writers[index].write(tokens))
        finish = b"null" if reason is None else b'"%b"' % _stopped(reason).encode()
        choice = b'{"index":%d,"text":%b,"logprobs":%b,"finish_reason":%b}'
        return (
            self._head + choice % (index, _encode(text), logprobs, finish) + (tail or self._tail_of_chunk())
        )

    def _answer(self, index: int, choice: CompletedChoice, echo: PromptEcho | None) -> TextChoice:
        text = "".join(part.text for part in choice.parts)
        tokens = tuple(token for part in choice.parts for token in part.tokens)
        if echo is not None:
            text, tokens = echo.text + text, echo.tokens + tokens
        return TextChoice(
            index=index,
            text=text,
            logprobs=LogprobWriter().write(tokens) if self._shape.logprobs else None,
            finish_reason=_stopped(choice.finished.reason) if choice.finished is not None else None,
        )


def _stopped(reason: FinishReason) -> str:
    """The finish reason in Completions, which has no tool calls."""
    return "stop" if reason == "tool_calls" else STOPPED[reason]
