"""The dialect of OpenAI's Completions: raw prompts, several in one body."""

import codecs
from collections.abc import Iterable, Sequence
from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field
from msgspec.structs import replace

from pippin.api.dialects.base import DecodeContext, Decoded, Dialect, Encoder, RunInfo
from pippin.api.dialects.shared import engine_fields as engine
from pippin.api.dialects.shared import openai as shared
from pippin.api.dialects.shared.fields import about, called, invalid, several, unsupported
from pippin.core.completion import CompletedChoice, Completion
from pippin.core.events import Event, Finished, FinishReason, PartDelta, Progress, PromptEcho, Token
from pippin.core.requests import GenerationRequest

_encode = msgspec.json.encode


ID_PREFIX: Final = "cmpl-"


class CompletionsShape(Struct, frozen=True, kw_only=True):
    stream: shared.StreamShape = field(default_factory=shared.StreamShape)
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
    usage: shared.UsageBody
    system_fingerprint: str
    timings: shared.TimingsBody | None = None
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
                body.token_logprobs.append(shared.finite(token.logprob))
                body.top_logprobs.append(
                    {_spelled(other.raw): shared.finite(other.logprob) for other in token.top}
                )
        return body


def _spelled(raw: bytes) -> str:
    text = shared.text_of(raw)
    if "\ufffd" not in text:
        return text
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


class CompletionsEncoder(shared.ChunkEncoder, Encoder):
    """See `Encoder`. Choices are numbered across all requests."""

    def __init__(self, shape: CompletionsShape, run: RunInfo) -> None:
        self._about = shared.AnswerHead(
            id=ID_PREFIX + run.id, created=run.created, model=run.model, system_fingerprint=run.fingerprint
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
                empty = b'{"index":%d,"text":"","logprobs":null,"finish_reason":null}' % first
                return self._progress(request, empty, event)
            case Finished(choice, reason):
                self._finished[request].append(event)
                self._completed[first + choice] = event.usage.completion_tokens
                return self._chunk(first + choice, "", (), reason, self._tail_of_choice(event))
            case _:
                return b""

    def whole(self, completions: Sequence[Completion]) -> bytes:
        finished = [[choice.finished for choice in completion.choices] for completion in completions]
        choices = [
            self._answer(request * self._shape.n + number, choice, completion.echo)
            for request, completion in enumerate(completions)
            for number, choice in enumerate(completion.choices)
        ]
        return _encode(
            TextCompletion(
                **self._about,
                choices=choices,
                usage=shared.usage_body([[each.usage for each in request] for request in finished]),
                timings=shared.timings_body(finished[0]),
                warnings=shared.warnings_of(each for request in finished for each in request),
            )
        )

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
            finish_reason=_stopped(choice.finished.reason),
        )


def _stopped(reason: FinishReason) -> str:
    """The finish reason in Completions, which has no tool calls."""
    return "stop" if reason == "tool_calls" else reason


MAX_PROMPTS = 512
DEFAULT_MAX_TOKENS = 16
"""OpenAI's default."""

TokenId = Annotated[int, Meta(ge=0, lt=2**48)]
Prompt = str | tuple[TokenId, ...]


class CompletionRequest(shared.OpenAIFields, kw_only=True, omit_defaults=True):
    prompt: Annotated[
        str | tuple[str | TokenId | tuple[TokenId, ...], ...],
        about(
            "Text, texts, token ids, or lists of token ids.",
            extra_json_schema={"minLength": 1, "minItems": 1},
        ),
    ]
    suffix: Annotated[str | None, about("Text after the gap, for models with fill-in-the-middle tokens.")] = (
        None
    )
    echo: Annotated[bool | None, about("Begin the answer with the prompt.")] = None
    best_of: Annotated[shared.Choices | None, about("The same as `n`: all that run are sent.")] = None
    logprobs: Annotated[
        engine.TopLogprobs | None,
        about("Report the log probability of each token, and of so many others."),
    ] = None


class CompletionsDialect(shared.OpenAIErrors, Dialect[CompletionsShape]):
    name = "completions"
    path = "/completions"
    id_prefix = ID_PREFIX
    answer = TextCompletion
    encoder = CompletionsEncoder
    contract = shared.contract_of(CompletionRequest, __name__)

    def decode(self, body: bytes, context: DecodeContext) -> Decoded[CompletionsShape]:
        fields, ignored = self.contract.decode(body)
        prompts = several(fields.prompt, "prompt", MAX_PROMPTS)
        request = _request_of(fields, prompts)
        places = ["prompt"] if len(prompts) == 1 else [f"prompt[{place}]" for place in range(len(prompts))]
        requests = tuple(
            replace(request, prompt=prompt, names=(*called(prompt=place, messages=place), *request.names))
            for place, prompt in zip(places, prompts, strict=True)
        )
        if len(requests) * request.n > shared.MAX_ANSWERS:
            raise invalid("n", f"times the number of prompts must not be above {shared.MAX_ANSWERS}.")
        return Decoded(
            requests=requests,
            shape=CompletionsShape(
                stream=shared.stream_shape_of(fields),
                n=request.n,
                requests=len(requests),
                logprobs=fields.logprobs is not None,
            ),
            stream=bool(fields.stream),
            ignored=ignored,
        )


def _request_of(fields: CompletionRequest, prompts: tuple[Prompt, ...]) -> GenerationRequest:
    """The request for any of the prompts, without it."""
    shared.check_values(fields)
    if fields.truncation == "auto":
        raise unsupported("truncation", "a raw prompt has no messages to let go; shorten it.")
    if fields.include_reasoning is False:
        raise unsupported("include_reasoning", "raw answers are sent as they are; use /v1/chat/completions.")
    n = fields.n or 1
    if fields.best_of not in (None, n):
        raise unsupported("best_of", "ask for as many as `n`, with `logprobs`, and keep the likeliest.")
    if fields.suffix and not all(isinstance(prompt, str) for prompt in prompts):
        raise invalid("suffix", "needs a text as `prompt`.")
    if fields.max_tokens == 0 and not fields.echo:
        raise invalid("max_tokens", "may only be 0 with `echo`.")
    return replace(
        engine.request_of(fields, fields.model),
        suffix=fields.suffix or None,
        stop=shared.stops_of(fields.stop),
        max_tokens=DEFAULT_MAX_TOKENS if fields.max_tokens is None else shared.limit_of(fields.max_tokens),
        n=n,
        logprobs=fields.logprobs,
        prompt_logprobs=fields.logprobs if fields.echo else None,
        echo=bool(fields.echo),
        # A raw prompt has no turns to drop.
        overflow=None,
    )


dialect = CompletionsDialect()
