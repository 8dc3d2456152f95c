"""What OpenAI's two completion APIs share: in requests the fields, honoured, accepted or refused; in answers log
probabilities, errors, usage, timings, and stream chunks. OpenAI's other APIs use parts of it.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, Final, Literal, TypedDict

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from pippin.api.dialects.shared.engine_fields import EngineFields, MostTokens, Name
from pippin.api.dialects.shared.fields import Body, Contract, about, names_of, unsupported, without_effect
from pippin.api.dialects.shared.frames import DONE
from pippin.core.conversation import ToolChoice
from pippin.core.errors import ErrorKind, ErrorReport
from pippin.core.events import Accepted, Finished, Progress, Token, Usage
from pippin.core.parameters import LONGEST_STOP, MOST_STOPS

MAX_ANSWERS = 1024
"""Most answers to one body. The operator sets how many choices a request may have, and the service checks it."""

Choices = Annotated[int, Meta(ge=1, le=MAX_ANSWERS)]

StopText = Annotated[str, Meta(min_length=1, max_length=LONGEST_STOP)]
StopTexts = Annotated[tuple[StopText, ...], Meta(max_length=MOST_STOPS)]

ACCEPTED, REFUSED = without_effect(__name__, "openai")
"""Fields of OpenAI's APIs without effect on an answer, and those that are refused, each with the reason."""


def contract_of(body: type[Body], module: str, required: frozenset[str] = frozenset()) -> Contract[Body]:
    """The contract of an API that has OpenAI's fields, and those of a `fields.json` beside its module."""
    accepted, refused = without_effect(module)
    without = {name: why for name, why in (ACCEPTED | accepted).items() if name not in names_of(body)}
    return Contract(body, without, REFUSED | refused, required=required)


class StreamOptions(Struct, kw_only=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Annotated[bool | None, about("Accepted: no chunk is ever padded.")] = None


class OpenAIFields(EngineFields, kw_only=True, omit_defaults=True):
    model: Annotated[
        Name, about("Id or alias of a model; `default`, or none, is the one that is served.")
    ] = "default"
    stream: Annotated[bool | None, about("Send the answer as server-sent events.")] = None
    stream_options: Annotated[StreamOptions | None, about("What a stream reports.")] = None
    return_progress: Annotated[
        bool | None,
        about("Of llama.cpp: a stream tells in `prompt_progress` how far the prompt is."),
    ] = None
    n: Annotated[Choices | None, about("Answers, computed beside one another.")] = None
    stop: Annotated[
        StopText | StopTexts | None, about("Texts at which the answer ends; they are left out.")
    ] = None
    max_tokens: Annotated[MostTokens | None, about("Most new tokens; -1 is no limit.")] = None
    skip_special_tokens: Annotated[bool | None, about("Only true: markup never leaks.")] = None
    tool_argument_recovery: Annotated[
        Literal["none"] | None, about('Only "none": arguments are never rewritten.')
    ] = None


def limit_of(most: int | None) -> int | None:
    """The limit of new tokens; None where there is none."""
    return None if most == -1 else most


def makes_several_calls(asked: bool | None, choice: ToolChoice) -> bool:
    """Whether there may be several calls: as asked, else where no tool is named. OpenAI's models call that once."""
    return asked if asked is not None else choice.mode != "required" or len(choice.names) != 1


def stops_of(given: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else given or ()


def check_values(fields: OpenAIFields) -> None:
    """Checks the fields that can be honoured with one value only."""
    if fields.skip_special_tokens is False:
        raise unsupported("skip_special_tokens", "markup tokens are read by the server and never sent.")


class StreamShape(Struct, frozen=True, kw_only=True):
    """The form of a stream of chunks."""

    usage: bool = False  # a chunk of its own at the end
    usage_unasked: bool = False  # without that chunk: usage in the one with the last `finish_reason`
    continuous_usage: bool = False  # usage in every chunk
    progress: bool = False  # chunks that report the progress of the prompt


def stream_shape_of(fields: OpenAIFields, *, usage_unasked: bool = False) -> StreamShape:
    options = fields.stream_options or StreamOptions()
    continuous = bool(options.continuous_usage_stats)
    return StreamShape(
        usage=bool(options.include_usage) or continuous,
        usage_unasked=usage_unasked and options.include_usage is None,
        continuous_usage=continuous,
        progress=bool(fields.return_progress),
    )


LOWEST: Final = -9999.0
"""OpenAI's number for a very unlikely token. It replaces minus infinity, which JSON can't represent, and log
probabilities that were not computed: every contract requires a number, and omitting the token would leave a gap in the
text."""


class TopLogprob(Struct, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob, kw_only=True):
    top_logprobs: list[TopLogprob]


class LogprobsBody(Struct, kw_only=True):
    content: list[TokenLogprob]
    refusal: None = None


def text_of(raw: bytes) -> str:
    """An incomplete character becomes U+FFFD; the field `bytes` holds the exact bytes."""
    return raw.decode("utf-8", "replace")


def finite(logprob: float | None) -> float:
    """The log probability as JSON can represent it: `LOWEST` for None, NaN and anything at or below `LOWEST`."""
    return LOWEST if logprob is None or not logprob > LOWEST else logprob


def logprobs_of(tokens: Iterable[Token]) -> list[TokenLogprob]:
    """The tokens with their natural log probabilities, in the form of Chat Completions and Responses."""
    return [
        TokenLogprob(
            token=text_of(token.raw),
            logprob=finite(token.logprob),
            bytes=list(token.raw),
            top_logprobs=[
                TopLogprob(token=text_of(other.raw), logprob=finite(other.logprob), bytes=list(other.raw))
                for other in token.top
            ],
        )
        for token in tokens
    ]


ERROR_TYPE: Final[dict[ErrorKind, str]] = {
    "authentication": "authentication_error",
    "permission": "permission_error",
    "rate_limited": "rate_limit_error",
    "timeout": "timeout_error",
    "cancelled": "request_cancelled",
    "overloaded": "overloaded_error",
    "load_failed": "server_error",
    "worker_died": "server_error",
    "internal": "server_error",
}
ERROR_CODE: Final[dict[ErrorKind, str | None]] = {
    "invalid_request": None,
    "authentication": "invalid_api_key",
    "rate_limited": "rate_limit_exceeded",
    "unsupported": "unsupported_parameter",
    "load_failed": "model_load_failed",
    "overloaded": "server_overloaded",
    "too_large": "request_too_large",
    "timeout": "request_timeout",
    "cancelled": "request_cancelled",
    "internal": "internal_error",
}
"""Kinds not listed here are their own code."""


class ErrorDetail(Struct, kw_only=True):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(Struct, kw_only=True):
    error: ErrorDetail


def error_body(report: ErrorReport) -> ErrorBody:
    return ErrorBody(
        error=ErrorDetail(
            message=report.message,
            type=ERROR_TYPE.get(report.kind, "invalid_request_error"),
            param=report.param,
            code=report.code or ERROR_CODE.get(report.kind, report.kind),
        )
    )


def encode_error(report: ErrorReport) -> bytes:
    return msgspec.json.encode(error_body(report))


class OpenAIErrors:
    """The errors of OpenAI's dialects."""

    failure: type[Struct] = ErrorBody

    def error(self, report: ErrorReport, request_id: str) -> bytes:
        return encode_error(report)


class PromptDetails(Struct, kw_only=True):
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    audio_tokens: int = 0


class CompletionDetails(Struct, kw_only=True):
    reasoning_tokens: int = 0
    audio_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class UsageBody(Struct, kw_only=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_details: PromptDetails = msgspec.field(default_factory=PromptDetails)
    completion_tokens_details: CompletionDetails = msgspec.field(default_factory=CompletionDetails)


def usage_body(requests: Iterable[list[Usage]]) -> UsageBody:
    """The usage of all requests; the choices of one request share its prompt."""
    body = UsageBody()
    details = body.completion_tokens_details
    for choices in requests:
        if not choices:
            continue
        prompt = choices[0]
        body.prompt_tokens += prompt.prompt_tokens
        body.prompt_tokens_details.cached_tokens += prompt.cached_tokens
        body.prompt_tokens_details.cache_write_tokens += prompt.stored_tokens
        body.completion_tokens += sum(usage.completion_tokens for usage in choices)
        for usage in choices:
            details.reasoning_tokens += usage.reasoning_tokens
            details.accepted_prediction_tokens += usage.accepted_tokens
            details.rejected_prediction_tokens += usage.draft_tokens - usage.accepted_tokens
    body.total_tokens = body.prompt_tokens + body.completion_tokens
    return body


class TimingsBody(Struct, kw_only=True):
    """llama.cpp's and mlx-vlm's timings, in milliseconds and tokens per second."""

    prompt_n: int
    cache_n: int
    predicted_n: int
    queue_ms: float
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    draft_n: int
    draft_n_accepted: int
    forced_n: int | UnsetType = UNSET  # tokens that a grammar forced, if any


def timings_body(choices: Sequence[Finished]) -> TimingsBody | None:
    """Timings of a whole request: its prompt, and its choices, which ran concurrently."""
    if not choices:
        return None
    prompt = choices[0].usage
    times = max((choice.timings for choice in choices), key=lambda each: each.decode)
    computed = max(prompt.prompt_tokens - prompt.cached_tokens, 0)
    predicted = sum(choice.usage.completion_tokens for choice in choices)
    return TimingsBody(
        prompt_n=computed,
        cache_n=prompt.cached_tokens,
        predicted_n=predicted,
        queue_ms=round(times.queue, 3),
        prompt_ms=round(times.prefill, 3),
        prompt_per_token_ms=_ratio(times.prefill, computed),
        prompt_per_second=_ratio(1000.0 * computed, times.prefill),
        predicted_ms=round(times.decode, 3),
        predicted_per_token_ms=_ratio(times.decode, predicted),
        predicted_per_second=_ratio(1000.0 * predicted, times.decode),
        draft_n=sum(choice.usage.draft_tokens for choice in choices),
        draft_n_accepted=sum(choice.usage.accepted_tokens for choice in choices),
        forced_n=sum(choice.usage.forced_tokens for choice in choices) or UNSET,
    )


def warnings_of(finished: Iterable[Finished]) -> list[str] | UnsetType:
    """What the choices do not keep to; unset if they keep to everything."""
    return [warning for each in finished for warning in each.warnings] or UNSET


def _ratio(dividend: float, divisor: float) -> float:
    return round(dividend / divisor, 3) if divisor > 0 else 0.0


_encode = msgspec.json.encode


class AnswerHead(TypedDict):
    """What whole answers and all chunks tell of a run."""

    id: str
    created: int  # seconds since the epoch
    model: str
    system_fingerprint: str


class PromptReports:
    """The progress reports of one prompt, in the form of llama.cpp's server for `return_progress`: its tokens, those
    `processed`, those of them found in the prefix cache, and the time since work on the prompt began.

    Its clients rely on their order: the first report holds the tokens from the prefix cache, `cache` and `total` stay
    constant, `processed` grows with each report, and the last one covers the whole prompt."""

    def __init__(self) -> None:
        self._cached: int | None = None  # until the first
        self._processed = 0

    def after(self, progress: Progress) -> list[dict[str, int]]:
        """The reports for an event: two if it is the first and a chunk was already computed, none while a preempted
        prompt is recomputed."""
        told = []
        if self._cached is None:
            self._cached = self._processed = progress.cached
            told.append((progress.cached, 0))
        if progress.done > self._processed:
            self._processed = progress.done
            told.append((progress.done, round(progress.seconds * 1000)))
        total, cached = progress.total, self._cached
        return [{"total": total, "cache": cached, "processed": n, "time_ms": time} for n, time in told]


class ChunkEncoder:
    """The part of a `StreamEncoder` that both APIs share; subclasses encode the choices.

    The head and the tail of a chunk are encoded once, so that each token only costs a short string.
    """

    def __init__(
        self, object: str, about: AnswerHead, stream: StreamShape, *, requests: int, choices: int
    ) -> None:
        """`object` is the name of a chunk, and `choices` the number of choices over all requests."""
        self._stream = stream
        head = {"id": about["id"], "object": object} | about
        self._head = b"data: " + _encode(head)[:-1] + b',"choices":['
        # With include_usage, every chunk but the last has `"usage":null`.
        self._tail = b'],"usage":null}\n\n' if stream.usage else b"]}\n\n"
        self._prompt_tokens = 0
        self._completed = [0] * choices  # completion tokens so far
        self._finished: list[list[Finished]] = [[] for _ in range(requests)]
        self._failed = False
        self._reports = [PromptReports() for _ in range(requests)]

    def start(self, accepted: Sequence[Accepted]) -> bytes:
        self._prompt_tokens = sum(each.prompt_tokens for each in accepted)
        return b""

    def failed(self, report: ErrorReport) -> bytes:
        self._failed = True
        return b"data: " + encode_error(report) + b"\n\n"

    def end(self) -> bytes:
        if self._failed or not self._stream.usage:
            return DONE
        usage = _encode(usage_body([[each.usage for each in choices] for choices in self._finished]))
        timings = _encode(timings_body(self._finished[0]))
        return self._head + b'],"usage":' + usage + b',"timings":' + timings + b"}\n\n" + DONE

    def _progress(self, request: int, choice: bytes, progress: Progress) -> bytes:
        """Chunks that report the progress of a request's prompt, if the client asked; `choice` is an empty choice."""
        if not self._stream.progress:
            return b""
        head = self._head + choice + self._tail_of_chunk().removesuffix(b"}\n\n") + b',"prompt_progress":'
        return b"".join(
            head + _encode(report) + b"}\n\n" for report in self._reports[request].after(progress)
        )

    def _tail_of_choice(self, finished: Finished) -> bytes:
        """The tail of the chunk that ends a choice."""
        tail = self._tail_of_chunk()
        if not finished.warnings:
            return tail
        return tail.removesuffix(b"}\n\n") + b',"warnings":' + _encode(finished.warnings) + b"}\n\n"

    def _tail_of_chunk(self) -> bytes:
        if not self._stream.continuous_usage:
            return self._tail
        so_far = Usage(prompt_tokens=self._prompt_tokens, completion_tokens=sum(self._completed))
        return b'],"usage":' + _encode(usage_body([[so_far]])) + b"}\n\n"
