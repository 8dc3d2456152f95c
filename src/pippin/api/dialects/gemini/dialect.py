"""The dialect of Gemini's API: its answers, its bodies, and how these are decoded into requests."""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from pippin.api.dialects.base import DecodeContext, Decoded, Dialect, Encoder, RunInfo
from pippin.api.dialects.gemini.content import Content, Contents, ContentsReader, detail_of, signature_of
from pippin.api.dialects.gemini.tools import GivenTool, ToolConfig, chosen, json_schema_of, tools_of
from pippin.api.dialects.shared import engine_fields as engine
from pippin.api.dialects.shared.body_types import in_camel_case, type_of
from pippin.api.dialects.shared.fields import (
    Contract,
    Unused,
    about,
    called,
    check_refused,
    decode_json,
    invalid,
    refused,
    unsupported,
    without_effect,
)
from pippin.api.dialects.shared.frames import EVENTS
from pippin.api.dialects.shared.openai import Choices, StopTexts, finite, text_of
from pippin.api.dialects.shared.tools import left_out
from pippin.core import parameters as p
from pippin.core.completion import Completion, object_of
from pippin.core.conversation import Message, Text
from pippin.core.errors import ErrorKind, ErrorReport
from pippin.core.events import Event, Finished, PartDelta, PartEnded, PartStarted, Token
from pippin.core.requests import Choice, GenerationRequest, OutputFormat, Thinking

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
    code, status = STATUS.get(report.kind, OTHERWISE)
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
            finished.append(choice.finished)
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


PATH: Final = "/v1beta/models/{model:path}"
CONFIG: Final = "generationConfig"
ANY_JSON: Final[dict[str, Any]] = {"type": ["object", "array"]}
"""What `application/json` alone asks for."""
SAMPLED: Final = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "seed")
UNSPECIFIED: Final = "THINKING_LEVEL_UNSPECIFIED"
LEVELS: Final = ("MINIMAL", "LOW", "MEDIUM", "HIGH", "XHIGH", UNSPECIFIED)
_SNAKE_CASE: Final = re.compile(rb'"[A-Za-z0-9]+_[A-Za-z0-9_]*"\s*:')

NO_PICTURES: Final = refused("pictures are made by /v1/images/generations.")
NO_SPEECH: Final = refused("answers are text; /v1/audio/speech reads text aloud.")
TRANSCRIBED: Final = refused("speech is transcribed by /v1/audio/transcriptions.")
NAMED: Final = refused("the address names the model; leave it out.")

Reply = Literal["whole", "events", "array"]


class ThinkingConfig(Struct, kw_only=True, rename="camel"):
    include_thoughts: bool | None = None
    thinking_budget: Annotated[int, Meta(ge=-1, le=100_000_000)] | None = None
    thinking_level: str | None = None


class TextFormat(Struct, kw_only=True, rename="camel"):
    mime_type: str | None = None
    schema: engine.Schema | None = None


class ResponseFormat(Struct, kw_only=True, rename="camel"):
    text: TextFormat | None = None
    audio: Annotated[Any, NO_SPEECH] = None
    image: Annotated[Any, NO_PICTURES] = None
    video: Annotated[Any, NO_PICTURES] = None


class GenerationConfig(Struct, kw_only=True, omit_defaults=True, rename="camel"):
    temperature: Annotated[float, p.TEMPERATURE.wire_meta] | None = None
    top_p: Annotated[float, p.TOP_P.wire_meta] | None = None
    top_k: Annotated[int, p.TOP_K.wire_meta] | None = None
    presence_penalty: Annotated[float, p.PRESENCE_PENALTY.wire_meta] | None = None
    frequency_penalty: Annotated[float, p.FREQUENCY_PENALTY.wire_meta] | None = None
    seed: Annotated[int, p.SEED.wire_meta] | None = None
    candidate_count: Choices | None = None
    max_output_tokens: engine.Tokens | None = None
    stop_sequences: StopTexts | None = None
    response_logprobs: bool | None = None
    logprobs: engine.TopLogprobs | None = None
    response_mime_type: str | None = None
    response_schema: dict[str, Any] | None = None
    response_json_schema: engine.Schema | None = None
    raw_json_schema: engine.Schema | None = msgspec.field(default=None, name="_responseJsonSchema")
    response_modalities: tuple[str, ...] | None = None
    thinking_config: ThinkingConfig | None = None
    media_resolution: str | None = None
    response_format: tuple[ResponseFormat, ...] | ResponseFormat | None = None
    speech_config: Annotated[Any, NO_SPEECH] = None
    enable_affective_dialog: Annotated[Any, NO_SPEECH] = None
    translation_config: Annotated[Any, NO_SPEECH] = None
    image_config: Annotated[Any, NO_PICTURES] = None
    audio_timestamp: Annotated[Any, TRANSCRIBED] = None
    audio_transcription_config: Annotated[Any, TRANSCRIBED] = None
    routing_config: Annotated[Any, NAMED] = None
    model_selection_config: Annotated[Any, NAMED] = None
    enable_enhanced_civic_answers: Unused = None


class GeminiBody(Struct, kw_only=True, omit_defaults=True, rename="camel"):
    contents: Annotated[Contents, about("The conversation so far, in parts.")] = ()
    system_instruction: Annotated[
        str | Content | None, about("What the model is told before the conversation.")
    ] = None
    generation_config: Annotated[
        GenerationConfig | None,
        about("Sampling, limits, output format, thinking, log probabilities."),
    ] = None
    tools: Annotated[
        tuple[GivenTool, ...] | GivenTool | None,
        about("Functions that may be called; tools that run at Google's are left out."),
    ] = None
    tool_config: Annotated[ToolConfig | None, about("Which functions may or must be called.")] = None
    model: Annotated[str | None, about("The model, where the address does not name it.")] = None


class CountBody(GeminiBody, kw_only=True, omit_defaults=True, rename="camel"):
    generate_content_request: Annotated[
        GeminiBody | None, about("What is counted, instead of `contents`.")
    ] = None


ACCEPTED, REFUSED = without_effect(__name__)


class GeminiDialect(Dialect[GeminiShape]):
    name = "gemini"
    path = f"{PATH}:generateContent"
    id_prefix = ID_PREFIX
    answer = GeminiAnswer
    failure = GoogleError
    encoder = GeminiEncoder

    def __init__(self, reply: Reply = "whole", *, counting: bool = False) -> None:
        """`reply`: the address and its query say how an answer is sent, not the body. `counting` is for countTokens,
        whose bodies may hold the whole request that is counted."""
        self._reply = reply
        self._counting = counting
        self.media = "application/json" if reply == "array" else EVENTS
        self.contract = Contract(CountBody if counting else GeminiBody, ACCEPTED, REFUSED)

    def decode(self, body: bytes, context: DecodeContext) -> Decoded[GeminiShape]:
        fields, ignored = self.contract.decode(spelled(body, self.contract.body))
        if isinstance(fields, CountBody) and fields.generate_content_request is not None:
            fields = fields.generate_content_request
        check_refused(fields)
        config = fields.generation_config or GenerationConfig()
        for place, modality in enumerate(config.response_modalities or ()):
            if modality.upper() not in ("TEXT", "MODALITY_UNSPECIFIED"):
                raise unsupported(f"{CONFIG}.responseModalities[{place}]", "answers are text; send `TEXT`.")
        if config.logprobs is not None and not config.response_logprobs:
            raise invalid(f"{CONFIG}.logprobs", "needs `responseLogprobs` to be true.")
        reader = ContentsReader(detail_of(config.media_resolution, f"{CONFIG}.mediaResolution"))
        if fields.system_instruction is not None:
            reader.system(fields.system_instruction, "systemInstruction")
        before = len(reader.messages)
        reader.read(fields.contents)
        if len(reader.messages) == before:
            raise invalid("contents", "must hold something that a model here can read.")
        given = (fields.tools,) if isinstance(fields.tools, GivenTool) else fields.tools or ()
        tools, elsewhere = tools_of(given)
        request = _request_of(config, model_of(context.path.get("model") or fields.model), reader.messages)
        tools, choice = chosen(fields.tool_config, tools)
        return Decoded(
            requests=(msgspec.structs.replace(request, tools=tools, tool_choice=choice),),
            shape=GeminiShape(
                candidates=request.n,
                thoughts=bool(config.thinking_config and config.thinking_config.include_thoughts),
                logprobs=bool(config.response_logprobs),
                array=self._reply == "array",
            ),
            stream=self._reply != "whole",
            ignored=ignored,
            warnings=left_out(tools=elsewhere, parts=reader.skipped),
        )

    def status(self, report: ErrorReport) -> int:
        return STATUS.get(report.kind, OTHERWISE)[0]

    def error(self, report: ErrorReport, request_id: str) -> bytes:
        return msgspec.json.encode(error_of(report))


def spelled(body: bytes, type: type[Struct]) -> bytes:
    """The body with its fields in camel case; those of protocol buffers may have either spelling."""
    if _SNAKE_CASE.search(body) is None:
        return body
    return msgspec.json.encode(in_camel_case(decode_json(body, dict[str, Any]), type_of(type)))


def model_of(name: str | None) -> str:
    """The name of a model without the collection that it is in."""
    return (name or "").removeprefix("models/").removeprefix("tunedModels/") or "default"


def _request_of(config: GenerationConfig, model: str, messages: list[Message]) -> GenerationRequest:
    field, wanted = format_of(config)
    last, sampled = messages[-1], {name: getattr(config, name) for name in SAMPLED}
    return GenerationRequest(
        model=model,
        messages=tuple(messages),
        sampling=engine.sampling_of(engine.SamplingFields(top_k=config.top_k, **sampled)),
        n=config.candidate_count or 1,
        max_tokens=config.max_output_tokens or None,
        # Clients take it from their tables of Google's models.
        cut_max_tokens=True,
        stop=config.stop_sequences or (),
        logprobs=(config.logprobs or 0) if config.response_logprobs else None,
        output_format=wanted,
        thinking=thinking_of(config.thinking_config),
        continue_final=last.role == "assistant" and isinstance(last.parts[-1], Text),
        names=called(
            messages="contents",
            n=f"{CONFIG}.candidateCount",
            max_tokens=f"{CONFIG}.maxOutputTokens",
            logprobs=f"{CONFIG}.logprobs",
            response_format=field,
        ),
    )


def format_of(config: GenerationConfig) -> tuple[str, OutputFormat | None]:
    """The field that asks for an output format, and the format. Raises `ServerError` for two, or an unknown one."""
    given = config.response_format or ()
    mime_at, mime = f"{CONFIG}.responseMimeType", config.response_mime_type
    schemas: dict[str, engine.Schema | None] = {
        f"{CONFIG}.responseJsonSchema": config.response_json_schema,
        f"{CONFIG}._responseJsonSchema": config.raw_json_schema,
    }
    if (google := config.response_schema) is not None:
        at = f"{CONFIG}.responseSchema"
        schemas[at] = json_schema_of(google, at)
    for place, each in enumerate((given,) if isinstance(given, ResponseFormat) else given):
        at = f"{CONFIG}.responseFormat[{place}].text"
        text = each.text or TextFormat()
        schemas[f"{at}.schema"] = text.schema
        if text.mime_type is not None:
            mime_at, mime = f"{at}.mimeType", text.mime_type
    asked = [(at, schema) for at, schema in schemas.items() if schema is not None]
    if len(asked) > 1:
        raise invalid(asked[1][0], f"can't be combined with `{asked[0][0]}`: ask for one output format.")
    field, schema = next(iter(asked), (mime_at, None))
    # Of `responseFormat`, it may be a word.
    match (mime or "").lower().replace("application_", "application/").replace("text_", "text/"):
        case "text/x.enum":
            words = schema.get("enum") if isinstance(schema, dict) else None
            if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
                raise invalid(mime_at, "`text/x.enum` needs a schema with an `enum` of texts.")
            return field, Choice(tuple(words))
        case "application/json":
            return field, engine.schema_format(ANY_JSON if schema is None else schema, field)
        case "" | "text/plain":
            return field, None if schema is None else engine.schema_format(schema, field)
        case _:
            raise unsupported(mime_at, "send `text/plain`, `application/json` or `text/x.enum`.")


def thinking_of(config: ThinkingConfig | None) -> Thinking:
    """A budget of 0 is none, and -1 as much as the model likes."""
    if config is None:
        return Thinking()
    level, budget = (config.thinking_level or UNSPECIFIED).upper(), config.thinking_budget
    if level not in LEVELS:
        raise invalid(
            f"{CONFIG}.thinkingConfig.thinkingLevel",
            f"must be one of {', '.join(map('`{}`'.format, LEVELS))}.",
        )
    effort = None if level == UNSPECIFIED or budget == 0 else level.lower()
    enabled = None if budget is None and effort is None else budget != 0
    return Thinking(enabled=enabled, budget=budget if budget and budget > 0 else None, effort=effort)


dialect = GeminiDialect()
