"""The dialect of Gemini's API: decodes a body into a request."""

import re
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from pippin.api.dialects.base import DecodeContext, Decoded, Dialect
from pippin.api.dialects.gemini.content import Content, Contents, ContentsReader, detail_of
from pippin.api.dialects.gemini.encode import (
    ID_PREFIX,
    GeminiAnswer,
    GeminiEncoder,
    GeminiShape,
    GoogleError,
    error_of,
    status_of,
)
from pippin.api.dialects.gemini.tools import GivenTool, ToolConfig, chosen, json_schema_of, tools_of
from pippin.api.dialects.shared import engine_fields as engine
from pippin.api.dialects.shared.body_types import in_camel_case, type_of
from pippin.api.dialects.shared.fields import (
    Contract,
    Unused,
    called,
    check_refused,
    decode_json,
    invalid,
    refused,
    unsupported,
    without_effect,
)
from pippin.api.dialects.shared.frames import EVENTS
from pippin.api.dialects.shared.openai import Choices, StopTexts, stops_of
from pippin.api.dialects.shared.tools import left_out
from pippin.core import parameters as p
from pippin.core.conversation import Message, Text
from pippin.core.errors import ErrorReport
from pippin.core.requests import Choice, GenerationRequest, OutputFormat, Thinking

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
    contents: Annotated[Contents, Meta(description="The conversation so far, in parts.")] = ()
    system_instruction: Annotated[
        str | Content | None, Meta(description="What the model is told before the conversation.")
    ] = None
    generation_config: Annotated[
        GenerationConfig | None,
        Meta(description="Sampling, limits, output format, thinking, log probabilities."),
    ] = None
    tools: Annotated[
        tuple[GivenTool, ...] | GivenTool | None,
        Meta(description="Functions that may be called; tools that run at Google's are left out."),
    ] = None
    tool_config: Annotated[ToolConfig | None, Meta(description="Which functions may or must be called.")] = (
        None
    )
    model: Annotated[str | None, Meta(description="The model, where the address does not name it.")] = None


class CountBody(GeminiBody, kw_only=True, omit_defaults=True, rename="camel"):
    generate_content_request: Annotated[
        GeminiBody | None, Meta(description="What is counted, instead of `contents`.")
    ] = None


ACCEPTED, REFUSED = without_effect(__name__)


class GeminiDialect(Dialect[GeminiShape]):
    name = "gemini"
    path = f"{PATH}:generateContent"
    id_prefix = ID_PREFIX
    answer = GeminiAnswer
    failure = GoogleError
    encoding = GeminiEncoder

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
        reader.read(fields.contents)
        if not (fields.contents and reader.messages):
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
        return status_of(report)[0]

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
        stop=stops_of(config.stop_sequences, f"{CONFIG}.stopSequences"),
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
