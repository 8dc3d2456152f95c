"""The dialects of Ollama: conversations (`/api/chat`) and single prompts (`/api/generate`)."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from pippin.api.dialects.base import DecodeContext, Decoded, Dialect, Encoder, RunInfo
from pippin.api.dialects.shared import engine_fields as engine
from pippin.api.dialects.shared import openai as shared
from pippin.api.dialects.shared.fields import (
    Contract,
    Unused,
    about,
    called,
    invalid,
    unsupported,
    without_effect,
)
from pippin.api.dialects.shared.media import source_of_data
from pippin.api.dialects.shared.tools import (
    MAX_MESSAGES,
    MAX_TOOLS,
    CallsInOrder,
    FunctionDefinition,
    GivenCall,
    call_of,
    offer,
)
from pippin.core.completion import CompletedPart, Completion, object_of
from pippin.core.conversation import Image, Message, Reasoning, Text, Tool, ToolCall, ToolResult
from pippin.core.errors import ErrorReport
from pippin.core.events import (
    Accepted,
    Event,
    Finished,
    PartDelta,
    PartEnded,
    PartStarted,
    Token,
)
from pippin.core.requests import GenerationRequest, JsonObject, LoopGuard, OutputFormat, Thinking

LINES: Final = "application/x-ndjson"
ID_PREFIX: Final = "ollama-"
NANOSECONDS: Final = 1_000_000  # in a millisecond


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
    logprobs: list[shared.TokenLogprob] | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET


class OllamaError(Struct, kw_only=True):
    error: str


def timestamp(seconds: float) -> str:
    """A time in Ollama's form: RFC 3339, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


class OllamaEncoder(Encoder):
    """See `Encoder`. A tool call is sent as one line when its arguments are complete."""

    def __init__(self, shape: OllamaShape, run: RunInfo) -> None:
        self._shape = shape
        self._started = self._accepted = time.monotonic()
        self._part = PartStarted(0, 0, "text")
        self._arguments: list[str] = []
        self._calls = 0

    def start(self, accepted: Sequence[Accepted]) -> bytes:
        self._accepted = time.monotonic()
        return b""

    def event(self, event: Event, request: int = 0) -> bytes:
        match event:
            case PartStarted(choice=0):
                self._part, self._arguments = event, []
                return self._delta(PartDelta(0, event.index, event.gap))
            case PartDelta(choice=0):
                return self._delta(event)
            case PartEnded(choice=0) if self._part.kind == "tool_call":
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
        thought = choice.text("reasoning") if self._shape.thinking else ""
        called = (self._called(part, part.text) for part in choice.parts if part.kind == "tool_call")
        calls = [call for each in called for call in each]
        line = self._bare(
            AnswerMessage(content=choice.text("text"), thinking=thought or UNSET, tool_calls=calls or UNSET)
        )
        if self._shape.logprobs:
            shown = choice.tokens("text", "reasoning") if self._shape.thinking else choice.tokens("text")
            line.logprobs = shared.logprobs_of(shown)
        return msgspec.json.encode(self._ended(line, choice.finished))

    def _delta(self, delta: PartDelta) -> bytes:
        if self._part.kind == "tool_call":
            self._arguments.append(delta.text)
            return b""
        if not (delta.text or delta.tokens):
            return b""
        if self._part.kind == "text":
            return self._line(AnswerMessage(content=delta.text), delta.tokens)
        if self._part.kind == "reasoning" and self._shape.thinking:
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
            line.logprobs = shared.logprobs_of(tokens)
        return self._encoded(line)

    def _bare(self, message: AnswerMessage) -> AnswerLine:
        line = AnswerLine(model=self._shape.model, created_at=timestamp(time.time()))
        if self._shape.chat:
            line.message = message
        else:
            line.response, line.thinking = message.content, message.thinking
        return line

    def _ended(self, line: AnswerLine, finished: Finished) -> AnswerLine:
        ended, usage, times = time.monotonic(), finished.usage, finished.timings
        line.done = True
        line.done_reason = "stop" if finished.reason == "tool_calls" else finished.reason
        line.warnings = shared.warnings_of([finished])
        line.total_duration = round((ended - self._started) * 1e9)
        line.load_duration = round((self._accepted - self._started) * 1e9)
        line.prompt_eval_count = usage.prompt_tokens
        line.prompt_eval_duration = round(times.prefill * NANOSECONDS)
        line.eval_count = usage.completion_tokens
        line.eval_duration = round(times.decode * NANOSECONDS)
        return line

    def _encoded(self, line: AnswerLine) -> bytes:
        return msgspec.json.encode(line) + b"\n"


LATEST: Final = ":latest"
"""The tag that Ollama's clients append to a name without one."""

Runner = Annotated[Any, about("Accepted: the operator says how models run.")]


class OllamaOptions(engine.SamplingFields, kw_only=True, omit_defaults=True):
    """`options` of a body: the sampling fields of all dialects, and Ollama's own options."""

    num_ctx: Annotated[
        Annotated[int, Meta(ge=1, le=2**40)] | None,
        about("Most tokens of prompt and answer together; the model's window at most."),
    ] = None
    num_predict: Annotated[
        Annotated[int, Meta(ge=-2, le=100_000_000)] | None,
        about("Most new tokens; -1, -2 and 0 set no limit."),
    ] = None
    stop: Annotated[shared.StopText | shared.StopTexts | None, about("Texts at which the answer ends.")] = (
        None
    )
    mirostat: Literal[0] | None = None
    tfs_z: Literal[1] | None = None
    mirostat_eta: Unused = None
    mirostat_tau: Unused = None
    num_keep: Unused = None
    penalize_newline: Unused = None
    num_batch: Runner = None
    num_gpu: Runner = None
    main_gpu: Runner = None
    num_thread: Runner = None
    low_vram: Runner = None
    f16_kv: Runner = None
    logits_all: Runner = None
    vocab_only: Runner = None
    use_mmap: Runner = None
    use_mlock: Runner = None
    numa: Runner = None
    embedding_only: Runner = None


class OllamaFields(Struct, kw_only=True, omit_defaults=True):
    """The fields of both bodies."""

    model: Annotated[engine.Name, about("Name of a model, with or without `:latest`.")]
    stream: Annotated[bool | None, about("Lines of JSON, or one object; true if not set.")] = None
    format: Annotated[
        Literal["", "json"] | dict[str, Any] | None, about('"json", or a JSON schema to follow.')
    ] = None
    options: Annotated[OllamaOptions | None, about("Sampling, limits and stops.")] = None
    think: Annotated[
        bool | Literal["low", "medium", "high", "max"] | None,
        about("Whether, or how hard, the model reasons first."),
    ] = None
    keep_alive: engine.KeepAlive = None
    truncate: Annotated[
        bool | None,
        about("False refuses a conversation that is too long; else its oldest turns go."),
    ] = None
    loop_guard: Annotated[LoopGuard | None, engine.LOOP_GUARD] = None
    logprobs: Annotated[bool | None, about("Report the log probability of each token.")] = None
    top_logprobs: Annotated[engine.TopLogprobs | None, about("And of this many others beside it.")] = None


def model_of(name: str) -> str:
    """The name of a model without the tag `:latest`."""
    return name.removesuffix(LATEST) or name


def with_fields(request: GenerationRequest, fields: OllamaFields) -> GenerationRequest:
    """The request with the shared fields applied. Raises `ServerError` naming the field."""
    options = fields.options or OllamaOptions()
    if fields.top_logprobs and not fields.logprobs:
        raise invalid("top_logprobs", "needs `logprobs` to be true.")
    limit, think = options.num_predict, fields.think
    wanted: OutputFormat | None = JsonObject() if fields.format else None
    if isinstance(fields.format, dict):
        wanted = engine.schema_format(fields.format, "format")
    return msgspec.structs.replace(
        request,
        sampling=engine.sampling_of(options),
        stop=shared.stops_of(options.stop),
        max_tokens=limit if limit is not None and limit > 0 else None,
        context_limit=options.num_ctx,
        output_format=wanted,
        thinking=Thinking(enabled=True, effort=think) if isinstance(think, str) else Thinking(enabled=think),
        logprobs=(fields.top_logprobs or 0) if fields.logprobs else None,
        overflow="error" if fields.truncate is False else "truncate",
        loop_guard=fields.loop_guard,
        keep_alive=keep_alive_of(fields.keep_alive),
        names=called(max_tokens="options.num_predict", response_format="format"),
    )


def keep_alive_of(given: str | float | None) -> float | None:
    """Seconds, as in the other dialects; an empty text is none. Raises `ServerError`."""
    return None if given == "" else engine.keep_alive_of(given)


Images = Annotated[tuple[str, ...], Meta(max_length=256)]


class OllamaMessage(Struct, kw_only=True):
    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: Images | None = None
    tool_calls: tuple[GivenCall, ...] | None = None
    tool_name: str | None = None
    name: str | None = None
    tool_call_id: str | None = None


class GivenTool(Struct, kw_only=True):
    function: FunctionDefinition
    type: str = "function"


GivenTools = Annotated[tuple[GivenTool, ...], Meta(max_length=MAX_TOOLS)]


def messages_of(given: tuple[OllamaMessage, ...]) -> tuple[Message, ...]:
    """Raises `ServerError` naming the message that can't be read."""
    calls = CallsInOrder()
    return tuple(_message_of(message, calls, f"messages[{place}]") for place, message in enumerate(given))


def _message_of(message: OllamaMessage, calls: CallsInOrder, at: str) -> Message:
    said = (Text(message.content),) if message.content else ()
    shown = images_of(message.images, f"{at}.images")
    if message.role == "tool":
        call_id, name = calls.answered(message.tool_call_id, message.tool_name or message.name)
        return Message("tool", (ToolResult(call_id, shown + said, name),))
    if message.role != "user" and shown:
        raise unsupported(f"{at}.images", "images belong to the user's messages and to tools' results.")
    if message.role != "assistant":
        return Message(message.role, shown + said)
    thought = (Reasoning(message.thinking),) if message.thinking else ()
    called: list[ToolCall] = []
    for number, call in enumerate(message.tool_calls or ()):
        made = call_of(call, f"{at}.tool_calls[{number}]")
        called.append(replace(made, id=calls.made(call.id, made.name)))
    return Message(message.role, (*thought, *said, *called))


def images_of(given: Images | None, at: str) -> tuple[Image, ...]:
    """Images as base64, which is Ollama's form, or as `data:` URLs. Raises `ServerError`."""
    return tuple(
        Image(source_of_data(text, f"{at}[{place}]"), field=f"{at}[{place}]")
        for place, text in enumerate(given or ())
    )


def tools_of(given: GivenTools | None) -> tuple[Tool, ...]:
    """Raises `ServerError` naming the tool that can't be offered."""
    tools: dict[str, Tool] = {}
    for place, tool in enumerate(given or ()):
        if tool.type != "function":
            raise unsupported(f"tools[{place}].type", 'only tools of type "function" are supported.')
        offer(tool.function, tools, f"tools[{place}].function")
    return tuple(tools.values())


class ChatBody(OllamaFields, kw_only=True, omit_defaults=True):
    messages: Annotated[
        tuple[OllamaMessage, ...],
        about("The conversation so far; none loads the model.", max_length=MAX_MESSAGES),
    ] = ()
    tools: Annotated[GivenTools | None, about("Functions that may be called.")] = None


class GenerateBody(OllamaFields, kw_only=True, omit_defaults=True):
    prompt: Annotated[str, about("What the user says; none loads the model.")] = ""
    suffix: Annotated[str | None, about("Text after the gap, for models with fill-in-the-middle tokens.")] = (
        None
    )
    system: Annotated[str | None, about("A system message before the prompt.")] = None
    images: Annotated[Images | None, about("Images as base64, for models that see.")] = None
    raw: Annotated[bool | None, about("Give the prompt to the model as it is.")] = None


class _OllamaDialect(Dialect[OllamaShape]):
    """The part that both dialects share."""

    id_prefix = ID_PREFIX
    answer = AnswerLine
    failure = OllamaError
    encoder = OllamaEncoder
    media = LINES

    def error(self, report: ErrorReport, request_id: str) -> bytes:
        return msgspec.json.encode(OllamaError(error=report.message))


class OllamaChatDialect(_OllamaDialect):
    name = "ollama_chat"
    path = "/api/chat"
    contract = Contract(ChatBody, *without_effect(__name__))

    def decode(self, body: bytes, context: DecodeContext) -> Decoded[OllamaShape]:
        fields, ignored = self.contract.decode(body)
        if not fields.messages:
            raise invalid("messages", "must hold at least one message.")
        request = GenerationRequest(
            model=model_of(fields.model), messages=messages_of(fields.messages), tools=tools_of(fields.tools)
        )
        return _decoded(with_fields(request, fields), fields, ignored, chat=True)


class OllamaGenerateDialect(_OllamaDialect):
    name = "ollama_generate"
    path = "/api/generate"
    contract = Contract(GenerateBody, *without_effect(__name__))

    def decode(self, body: bytes, context: DecodeContext) -> Decoded[OllamaShape]:
        fields, ignored = self.contract.decode(body)
        if not fields.prompt and not fields.images:
            raise invalid("prompt", "must not be empty.")
        model = model_of(fields.model)
        if fields.raw or fields.suffix:
            for name in ("system", "images", "think"):
                if getattr(fields, name):
                    raise invalid(name, "needs the chat template; leave out `raw` and `suffix`.")
            request = GenerationRequest(model=model, prompt=fields.prompt, suffix=fields.suffix or None)
            # A raw prompt has no turns to drop.
            request = replace(with_fields(request, fields), overflow=None)
        else:
            said = (Text(fields.prompt),) if fields.prompt else ()
            user = Message("user", images_of(fields.images, "images") + said)
            system = (Message("system", (Text(fields.system),)),) if fields.system else ()
            request = with_fields(GenerationRequest(model=model, messages=(*system, user)), fields)
            request = replace(request, names=(*request.names, *called(messages="prompt")))
        return _decoded(request, fields, ignored, chat=False)


def _decoded(
    request: GenerationRequest, fields: OllamaFields, ignored: tuple[str, ...], *, chat: bool
) -> Decoded[OllamaShape]:
    return Decoded(
        requests=(request,),
        shape=OllamaShape(
            model=fields.model, chat=chat, thinking=fields.think is not False, logprobs=bool(fields.logprobs)
        ),
        stream=fields.stream is not False,
        ignored=ignored,
    )


dialects = (OllamaChatDialect(), OllamaGenerateDialect())
