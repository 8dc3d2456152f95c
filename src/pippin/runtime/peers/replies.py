"""Reads another server's replies as events: a stream of chunks, the list of its models, and its errors."""

from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field

from pippin.core.decoding import from_json
from pippin.core.errors import ErrorKind, ErrorReport
from pippin.core.events import (
    Accepted,
    Event,
    Finished,
    FinishReason,
    PartDelta,
    PartEnded,
    PartStarted,
    Progress,
    Timings,
    Token,
    TopToken,
    Usage,
)
from pippin.core.models import Capabilities, ModelInfo, ModelKind

NO_TOKEN: Final = -1
"""Stands in for a token id: this API gives tokens as text and bytes, without ids."""


class _Function(Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(Struct):
    index: int = 0
    id: str | None = None
    function: _Function | None = None


class _Delta(Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None


class _Top(Struct):
    token: str
    logprob: float
    bytes: list[int] | None = None


class _Logprob(_Top):
    top_logprobs: list[_Top] = field(default_factory=list)


class _Logprobs(Struct):
    content: list[_Logprob] | None = None


class _Choice(Struct):
    index: int = 0
    delta: _Delta | None = None
    text: str | None = None  # in Completions
    finish_reason: str | None = None
    stop_reason: str | int | None = None  # vLLM's: the stop string
    logprobs: _Logprobs | None = None


Count = Annotated[int, Meta(ge=0, le=1 << 40)]
"""A token count. It is charged to the caller's limits, and a negative one would be a gift."""


class _PromptDetails(Struct):
    cached_tokens: Count | None = None
    cache_write_tokens: Count | None = None


class _CompletionDetails(Struct):
    reasoning_tokens: Count | None = None


class _Usage(Struct):
    prompt_tokens: Count = 0
    completion_tokens: Count = 0
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None


class _Progress(Struct):
    total: Count
    cache: Count = 0
    processed: Count = 0


Milliseconds = Annotated[float, Meta(ge=0.0)]


class _Timings(Struct):
    """The timings of Pippin and llama.cpp, in milliseconds."""

    queue_ms: Milliseconds = 0.0
    prompt_ms: Milliseconds = 0.0
    predicted_ms: Milliseconds = 0.0


class _Error(Struct):
    message: str = ""
    param: str | None = None
    code: str | int | None = None


class _Chunk(Struct):
    choices: list[_Choice] = field(default_factory=list)
    usage: _Usage | None = None
    timings: _Timings | None = None
    prompt_progress: _Progress | None = None
    error: _Error | str | UnsetType | None = UNSET


class BrokenReply(Exception):
    """The other server sent something that is no answer of this API."""


class SentEvents:
    """Splits a stream of server-sent events, as it arrives, into the data of each."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > LONGEST_LINE:
            raise BrokenReply(f"a line of its stream is longer than {LONGEST_LINE} bytes")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()


LONGEST_LINE: Final = 16 << 20
LONGEST_ID: Final = 512  # characters of a model's name

REASONS: Final[dict[str, FinishReason]] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
}
"""Finish reasons. Unknown ones, such as `content_filter`, count as `stop`."""

Kind = Literal["text", "reasoning", "tool_call"]


class _OpenChoice:
    """The parts of one choice as they open and close."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.tokens = 0  # counts chunks, which are tokens if the other server merges none
        self.reason: FinishReason | None = None
        self.stop: str | None = None
        self._parts = -1
        self._open: tuple[Kind, int] | None = None  # the kind of the open part, and the index of its call

    def say(self, kind: Kind, text: str, tokens: tuple[Token, ...] = (), call: int = 0) -> Iterator[Event]:
        if self._open != (kind, call):
            yield from self.begin(kind, call)
        if text or tokens:
            self.tokens += 1
            yield PartDelta(self.number, self._parts, text, tokens, self.tokens)

    def begin(
        self, kind: Kind, call: int = 0, id: str | None = None, name: str | None = None
    ) -> Iterator[Event]:
        yield from self.close()
        self._parts += 1
        self._open = (kind, call)
        yield PartStarted(self.number, self._parts, kind, id, name)

    def call(self, given: _Call) -> Iterator[Event]:
        function = given.function or _Function()
        if self._open != ("tool_call", given.index):
            own = given.id or f"call_{self.number}_{given.index}"
            yield from self.begin("tool_call", given.index, own, function.name)
        if function.arguments:
            yield from self.say("tool_call", function.arguments, call=given.index)

    def close(self) -> Iterator[Event]:
        if self._open is not None:
            self._open = None
            yield PartEnded(self.number, self._parts)


class AnswerReader:
    """Turns the chunks of one answer into events, from `Accepted` to the last `Finished`."""

    def __init__(self, choices: int, *, tells_progress: bool) -> None:
        """`tells_progress`: the first chunk has the prompt's length, so `Accepted` waits for it."""
        self._choices = [_OpenChoice(number) for number in range(choices)]
        self._usage = _Usage()
        self._timings = Timings()
        self._accepted = False
        self._waits = tells_progress
        self.finished = False

    def begun(self) -> Iterator[Event]:
        """The other server has accepted the request."""
        if not self._waits:
            yield from self._accept(0)

    def chunk(self, data: bytes) -> Iterator[Event]:
        """Raises `BrokenReply`, and `ServerErrorInStream` for an error inside the stream."""
        if data == b"[DONE]":
            yield from self.end()
            return
        try:
            chunk = from_json(data, _Chunk)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BrokenReply(f"a chunk of its stream can't be read: {error}") from None
        if chunk.error:
            raise error_in_stream(chunk.error)
        progress = chunk.prompt_progress
        yield from self._accept(progress.total if progress is not None else 0)
        if progress is not None:
            yield Progress(progress.processed, progress.total, progress.cache)
        if chunk.usage is not None:
            self._usage = chunk.usage
        if (told := chunk.timings) is not None:
            self._timings = Timings(queue=told.queue_ms, prefill=told.prompt_ms, decode=told.predicted_ms)
        for choice in chunk.choices:
            if not 0 <= choice.index < len(self._choices):
                raise BrokenReply("it answers with a choice that was not asked for")
            yield from self._choice(self._choices[choice.index], choice)

    def end(self) -> Iterator[Event]:
        """The stream has ended properly. Raises `BrokenReply` if a choice has not."""
        if self.finished:
            return
        if any(choice.reason is None for choice in self._choices):
            raise BrokenReply("its stream ended inside an answer")
        self.finished = True
        for choice in self._choices:
            reason = choice.reason
            assert reason is not None
            yield Finished(choice.number, reason, choice.stop, self._usage_of(choice.number), self._timings)

    def _accept(self, tokens: int) -> Iterator[Event]:
        if not self._accepted:
            self._accepted = True
            yield Accepted(tokens)

    def _choice(self, choice: _OpenChoice, given: _Choice) -> Iterator[Event]:
        if choice.reason is not None:
            return  # anything after the end belongs to no part
        tokens = _tokens(given.logprobs)
        if given.text:
            yield from choice.say("text", given.text)
        if (delta := given.delta) is not None:
            if thought := delta.reasoning_content or delta.reasoning:
                yield from choice.say("reasoning", thought)
            if (text := delta.content or delta.refusal) or tokens:
                yield from choice.say("text", text or "", tokens)
            for call in delta.tool_calls or ():
                yield from choice.call(call)
        if given.finish_reason is not None:
            yield from choice.close()
            choice.reason = REASONS.get(given.finish_reason, "stop")
            choice.stop = given.stop_reason if isinstance(given.stop_reason, str) else None

    def _usage_of(self, choice: int) -> Usage:
        """The API counts all choices together, so the first one carries the total."""
        told = self._usage
        prompt = told.prompt_tokens_details or _PromptDetails()
        completion = told.completion_tokens_details or _CompletionDetails()
        return Usage(
            prompt_tokens=told.prompt_tokens,
            cached_tokens=prompt.cached_tokens or 0,
            stored_tokens=prompt.cache_write_tokens or 0,
            completion_tokens=told.completion_tokens if choice == 0 else 0,
            reasoning_tokens=(completion.reasoning_tokens or 0) if choice == 0 else 0,
        )


def _tokens(logprobs: _Logprobs | None) -> tuple[Token, ...]:
    if logprobs is None or not logprobs.content:
        return ()
    return tuple(
        Token(
            NO_TOKEN,
            _raw(each),
            each.logprob,
            tuple(TopToken(NO_TOKEN, _raw(other), other.logprob) for other in each.top_logprobs),
        )
        for each in logprobs.content
    )


def _raw(told: _Top) -> bytes:
    if told.bytes is not None and all(0 <= byte < 256 for byte in told.bytes):
        return bytes(told.bytes)
    return told.token.encode()


KINDS: Final[dict[int, ErrorKind]] = {
    400: "invalid_request",
    408: "timeout",
    413: "too_large",
    415: "unsupported_media_type",
    422: "invalid_request",
}
"""Errors that the client can fix, by the other server's status. Everything else is the other server's problem."""

ELSEWHERE: Final = frozenset((401, 403, 404, 429, 499))
"""Statuses with which a server does not take the request now; so are all from 500 on."""

SPECIFIC: Final[dict[str, ErrorKind]] = {
    "context_length_exceeded": "context_length_exceeded",
    "unsupported_parameter": "unsupported",
}


class _Failure(Struct):
    error: _Error | str | None = None
    message: str | None = None  # if the body itself is the error


def refusal(status: int, body: bytes) -> ErrorReport:
    """The error for a client, for a refusal that it can fix."""
    try:
        failure = from_json(body, _Failure)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        failure = _Failure()
    error = (
        failure.error if isinstance(failure.error, _Error) else _Error(failure.error or failure.message or "")
    )
    kind = SPECIFIC.get(str(error.code), KINDS.get(status, "invalid_request"))
    message = error.message or f"The server that runs the model refused the request with status {status}."
    return ErrorReport(kind=kind, message=message, param=error.param)


def error_in_stream(error: _Error | str) -> "ServerErrorInStream":
    return ServerErrorInStream(error if isinstance(error, str) else error.message)


class ServerErrorInStream(Exception):
    """The other server ended its answer with an error, quoted here."""


class _Model(Struct):
    id: str
    owned_by: str | None = None
    kind: str | None = None
    context_window: int | None = None
    max_model_len: int | None = None  # vLLM's and others'
    created: int | None = None
    capabilities: dict[str, Any] | None = None


class _Models(Struct):
    data: list[_Model] = field(default_factory=list)


PIPPINS: Final = ("pippin", "local", "vllm-mlx")
"""`owned_by` values of a Pippin, by default or by a profile; only Pippin also sends `kind`."""


def models_of(body: bytes) -> tuple[list[ModelInfo], bool]:
    """The models in a `/v1/models` body that can generate text, and whether the server is a Pippin. Raises
    `BrokenReply`."""
    try:
        listed = from_json(body, _Models).data
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BrokenReply(f"its list of models can't be read: {error}") from None
    usable = [
        each for each in listed if each.kind in (None, "language", "scripted") and _can_be_named(each.id)
    ]
    return [_info(each) for each in usable], any(
        each.owned_by in PIPPINS and each.kind is not None for each in listed
    )


def _can_be_named(id: str) -> bool:
    """Whether the name can be written in a log line and in a request."""
    return 0 < len(id) <= LONGEST_ID and id.isprintable()


def _info(model: _Model) -> ModelInfo:
    told = model.capabilities
    kind: ModelKind = "language"
    if told is None:
        capabilities = Capabilities(chat=True, tools=True)
    else:
        names = Capabilities.__struct_fields__
        capabilities = Capabilities(
            **{name: told[name] for name in names if isinstance(told.get(name), bool)}
        )
    return ModelInfo(
        id=model.id,
        kind=kind,
        capabilities=capabilities,
        context_window=model.context_window or model.max_model_len,
        created=model.created or 0,
        remote=True,
    )
