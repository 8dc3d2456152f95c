"""Encodes events as the chunks and answers of Chat Completions."""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec
from msgspec import Struct, field

from pippin.api.dialects.base import Encoder, RunInfo
from pippin.api.dialects.shared.openai import (
    STOPPED,
    AnswerHead,
    ChunkEncoder,
    LogprobsBody,
    StreamShape,
    TimingsBody,
    UsageBody,
    logprobs_of,
    timings_body,
    usage_body,
    warnings_of,
)
from pippin.core.completion import CompletedChoice, Completion
from pippin.core.events import Event, Finished, PartDelta, PartKind, PartStarted, Progress, Token

_encode = msgspec.json.encode


ID_PREFIX: Final = "chatcmpl-"


class ChatShape(Struct, frozen=True, kw_only=True):
    stream: StreamShape = field(default_factory=StreamShape)
    n: int = 1
    logprobs: bool = False
    reasoning: bool = True  # whether reasoning may be shown


class AnswerFunction(Struct, kw_only=True):
    name: str
    arguments: str


class AnswerCall(Struct, kw_only=True):
    id: str
    function: AnswerFunction
    type: Literal["function"] = "function"


class AnswerMessage(Struct, kw_only=True):
    content: str | None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    reasoning: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[AnswerCall] | msgspec.UnsetType = msgspec.UNSET
    refusal: str | None = None
    annotations: list[str] = field(default_factory=list)
    role: Literal["assistant"] = "assistant"


class AnswerChoice(Struct, kw_only=True):
    index: int
    message: AnswerMessage
    logprobs: LogprobsBody | None
    finish_reason: str


class ChatCompletion(Struct, kw_only=True):
    id: str
    created: int
    model: str
    choices: list[AnswerChoice]
    usage: UsageBody
    system_fingerprint: str
    request_id: str
    timings: TimingsBody | None = None
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET
    object: Literal["chat.completion"] = "chat.completion"


class ChatEncoder(ChunkEncoder, Encoder):
    """See `Encoder`."""

    def __init__(self, shape: ChatShape, run: RunInfo) -> None:
        self._about = AnswerHead(
            id=ID_PREFIX + run.id,
            created=run.created,
            model=run.model,
            system_fingerprint=run.fingerprint,
        )
        super().__init__("chat.completion.chunk", self._about, shape.stream, requests=1, choices=shape.n)
        self._shape = shape
        self._openings = [
            self._head + b'{"index":%d,"delta":{' % choice + b'"content":' for choice in range(shape.n)
        ]
        self._kinds: dict[tuple[int, int], tuple[PartKind, int]] = {}
        self._calls = [0] * shape.n
        self._begun = [False] * shape.n  # the chunk with the role was sent

    def event(self, event: Event, request: int = 0) -> bytes:
        match event:
            case PartDelta(choice, index, text, tokens, completed):
                self._completed[choice] = completed or self._completed[choice]
                kind, call = self._kinds[choice, index]
                if kind == "text":
                    return self._text(choice, text, tokens)
                if kind == "reasoning":
                    return self._reasoning(choice, text)
                return self._arguments(choice, call, text) if kind == "tool_call" else b""
            case PartStarted(choice):
                return self._begin(choice, event.kind) + self._part(event)
            case Finished(choice):
                return self._begin(choice, "text") + self._end_of_choice(event)
            case Progress():
                return self._prompt_progress(event)
            case _:
                return b""

    def whole(self, completions: Sequence[Completion]) -> bytes:
        [completion] = completions
        finished = [choice.finished for choice in completion.choices if choice.finished is not None]
        return _encode(
            ChatCompletion(
                **self._about,
                choices=[self._answer(number, choice) for number, choice in enumerate(completion.choices)],
                usage=usage_body([[each.usage for each in finished]]),
                request_id=self._about["id"].removeprefix(ID_PREFIX),
                timings=timings_body(finished),
                warnings=warnings_of(finished),
            )
        )

    def _begin(self, choice: int, kind: PartKind) -> bytes:
        """The chunk with the role, before the first part of a choice; null content if that part is a tool call."""
        if self._begun[choice]:
            return b""
        self._begun[choice] = True
        content = b"null" if kind == "tool_call" else b'""'
        return self._chunk(choice, b'"role":"assistant","content":%b,"refusal":null' % content)

    def _text(self, choice: int, text: str, tokens: tuple[Token, ...] = ()) -> bytes:
        if not text and not tokens:
            return b""
        if self._shape.logprobs:
            logprobs = b',"logprobs":' + _encode(LogprobsBody(content=logprobs_of(tokens)))
        else:
            logprobs = b',"logprobs":null'
        tail = self._tail_of_chunk()
        return self._openings[choice] + _encode(text) + b"}" + logprobs + b',"finish_reason":null}' + tail

    def _reasoning(self, choice: int, text: str) -> bytes:
        if not text or not self._shape.reasoning:
            return b""
        quoted = _encode(text)
        return self._chunk(choice, b'"reasoning_content":' + quoted + b',"reasoning":' + quoted)

    def _arguments(self, choice: int, call: int, text: str) -> bytes:
        if not text:
            return b""
        return self._chunk(
            choice, b'"tool_calls":[{"index":%d,"function":{"arguments":%b}}]' % (call, _encode(text))
        )

    def _part(self, part: PartStarted) -> bytes:
        place = part.choice, part.index
        if part.kind != "tool_call":
            self._kinds[place] = part.kind, 0
            gap = self._text if part.kind == "text" else self._reasoning
            return gap(part.choice, part.gap)
        call = self._calls[part.choice]
        self._calls[part.choice] += 1
        self._kinds[place] = part.kind, call
        function = {"name": part.name, "arguments": ""}
        opened = {"index": call, "id": part.id, "type": "function", "function": function}
        return self._chunk(part.choice, b'"tool_calls":[' + _encode(opened) + b"]")

    def _end_of_choice(self, finished: Finished) -> bytes:
        [choices] = self._finished
        choices.append(finished)
        self._completed[finished.choice] = finished.usage.completion_tokens
        last = len(choices) == self._shape.n
        tail = self._tail_of_choice(finished)
        if last and not self._shape.stream.usage:
            usage = b""
            if self._shape.stream.usage_unasked:
                usage = b',"usage":' + _encode(usage_body([[each.usage for each in choices]]))
            tail = b"]" + usage + b',"timings":' + _encode(timings_body(choices)) + tail.removeprefix(b"]")
        reason = STOPPED[finished.reason].encode()
        return (
            self._head
            + b'{"index":%d,"delta":{},"logprobs":null,"finish_reason":"%b"}' % (finished.choice, reason)
            + tail
        )

    def _prompt_progress(self, progress: Progress) -> bytes:
        # llama.cpp puts the role into each of these deltas. OpenAI's SDKs concatenate the strings of deltas and would
        # get "assistantassistant".
        return self._progress(0, b'{"index":0,"delta":{},"logprobs":null,"finish_reason":null}', progress)

    def _chunk(self, choice: int, delta: bytes) -> bytes:
        body = b'{"index":%d,"delta":{%b},"logprobs":null,"finish_reason":null}' % (choice, delta)
        return self._head + body + self._tail_of_chunk()

    def _answer(self, number: int, choice: CompletedChoice) -> AnswerChoice:
        calls = [
            AnswerCall(id=part.id or "", function=AnswerFunction(name=part.name or "", arguments=part.text))
            for part in choice.parts
            if part.kind == "tool_call"
        ]
        text = choice.text("text")
        thought = choice.text("reasoning") if self._shape.reasoning else ""
        message = AnswerMessage(
            content=text if text or not calls else None,
            reasoning_content=thought or msgspec.UNSET,
            reasoning=thought or msgspec.UNSET,
            tool_calls=calls or msgspec.UNSET,
        )
        logprobs = LogprobsBody(content=logprobs_of(choice.tokens("text"))) if self._shape.logprobs else None
        reason = STOPPED[choice.finished.reason] if choice.finished is not None else "stop"
        return AnswerChoice(index=number, message=message, logprobs=logprobs, finish_reason=reason)
