"""The fields with which clients control a generation, and their meaning to the engine.

`SamplingFields` has those whose ranges and descriptions are in `core/parameters.py`. `EngineFields` adds those of
structured output, under OpenAI's, vLLM's and llama.cpp's names, and the other fields of the replaced servers. Names and
values of other servers are translated here.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from pippin.api.dialects.shared.fields import (
    about,
    called,
    check_depth,
    check_refused,
    check_small,
    convert,
    invalid,
    refused,
    unsupported,
)
from pippin.config.values import parse_duration
from pippin.core import parameters as p
from pippin.core.conversation import Attachment, Image, Message, Video
from pippin.core.decoding import from_json
from pippin.core.requests import (
    RESERVED_VARIABLES,
    Choice,
    GenerationRequest,
    Grammar,
    JsonObject,
    JsonSchema,
    JsonSpacing,
    LoopGuard,
    OutputFormat,
    OverflowPolicy,
    Regex,
    Sampling,
    Thinking,
)
from pippin.core.tasks import with_attachments

Bias = Annotated[float, Meta(ge=-p.LARGEST_BIAS, le=p.LARGEST_BIAS)]
Biases = Annotated[dict[str, Bias], Meta(max_length=p.MOST_BIASES)]
Penalty = Annotated[float, p.REPETITION_PENALTY.wire_meta]
PenaltyWindow = Annotated[int, p.REPETITION_CONTEXT.wire_meta]


class SamplingFields(Struct, kw_only=True, omit_defaults=True):
    """Base of the dialects' request structs; read with `sampling_of`."""

    temperature: Annotated[float, p.TEMPERATURE.wire_meta] | None = None
    top_p: Annotated[float, p.TOP_P.wire_meta] | None = None
    top_k: Annotated[int, p.TOP_K.wire_meta] | None = None
    min_p: Annotated[float, p.MIN_P.wire_meta] | None = None
    typical_p: Annotated[float, p.TYPICAL_P.wire_meta] | None = None
    top_n_sigma: Annotated[float, p.TOP_N_SIGMA.wire_meta] | None = None
    p_less: bool | Annotated[int, p.P_LESS.wire_meta] | None = None
    xtc_probability: Annotated[float, p.XTC_PROBABILITY.wire_meta] | None = None
    xtc_threshold: Annotated[float, p.XTC_THRESHOLD.wire_meta] | None = None
    repetition_penalty: Penalty | None = None
    repetition_context_size: PenaltyWindow | None = None
    repeat_penalty: Annotated[Penalty | None, about("llama.cpp's name of `repetition_penalty`.")] = None
    repeat_last_n: Annotated[
        PenaltyWindow | None, about("llama.cpp's name of `repetition_context_size`.")
    ] = None
    presence_penalty: Annotated[float, p.PRESENCE_PENALTY.wire_meta] | None = None
    presence_context_size: Annotated[int, p.PRESENCE_CONTEXT.wire_meta] | None = None
    frequency_penalty: Annotated[float, p.FREQUENCY_PENALTY.wire_meta] | None = None
    frequency_context_size: Annotated[int, p.FREQUENCY_CONTEXT.wire_meta] | None = None
    logit_bias: Annotated[Biases | None, about("Token id to what is added to its logit.")] = None
    seed: Annotated[int, p.SEED.wire_meta] | None = None


def sampling_of(fields: SamplingFields) -> Sampling:
    """The sampling that the fields ask for. Raises `ServerError` if a key of `logit_bias` is not a token id."""
    asked: dict[str, Any] = {each.name: getattr(fields, each.public_name) for each in p.PARAMETERS}
    if asked["repetition_penalty"] is None:
        asked["repetition_penalty"] = fields.repeat_penalty
    if asked["repetition_context"] is None:
        asked["repetition_context"] = fields.repeat_last_n
    asked["p_less"] = None if fields.p_less is None else int(fields.p_less)
    # A nucleus without any probability mass holds only the likeliest token.
    if asked["top_p"] == 0:
        asked |= {"top_p": None, "top_k": 1}
    # Other values of 0 or below that are out of range mean "off".
    for each in p.PARAMETERS:
        value = asked[each.name]
        if value is not None and value <= 0 and not each.holds(value):
            asked[each.name] = each.neutral
    biases = fields.logit_bias or {}
    if not all(key.isascii() and key.isdigit() and len(key) < 10 for key in biases):
        raise invalid("logit_bias", "must map token ids (whole numbers from 0) to numbers.")
    return Sampling(**asked, logit_bias={int(key): bias for key, bias in biases.items()} or None)


Pattern = Annotated[str, Meta(min_length=1, max_length=65_536)]
GrammarText = Annotated[str, Meta(min_length=1, max_length=1_048_576)]
Options = Annotated[tuple[str, ...], Meta(min_length=1, max_length=4096)]
Schema = dict[str, Any] | bool | str
"""A JSON schema, or its JSON text."""


class TextFormat(Struct, tag_field="type", tag="text"):
    pass


class JsonObjectFormat(Struct, tag_field="type", tag="json_object"):
    schema: dict[str, Any] | None = None  # llama.cpp and others allow one here


class NamedSchema(Struct, kw_only=True):
    name: Annotated[str, about("Accepted: no model is told of it.", min_length=1, max_length=64)]
    description: Annotated[str | None, about("Accepted: no model is told of it.")] = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None


class JsonSchemaFormat(Struct, tag_field="type", tag="json_schema"):
    """Chat Completions puts the schema into an object of its own."""

    json_schema: NamedSchema


class RegexFormat(Struct, tag_field="type", tag="regex"):
    pattern: Pattern


class GrammarFormat(Struct, tag_field="type", tag="grammar"):
    grammar: GrammarText


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat | RegexFormat | GrammarFormat


class StructuredOutputs(Struct, kw_only=True):
    """vLLM's `structured_outputs` object, in which exactly one kind is set."""

    json: Schema | None = None
    regex: Pattern | None = None
    choice: Options | None = None
    grammar: GrammarText | None = None
    json_object: bool | None = None
    structural_tag: Annotated[Any, refused("use `tools`, `regex` or `grammar` instead.")] = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: Annotated[
        bool | None, refused('write "additionalProperties": false in the schema.')
    ] = None
    whitespace_pattern: Annotated[str | None, refused("leave it out; whitespace is kept compact.")] = None
    disable_fallback: Annotated[bool | None, about("Accepted: there is nothing to fall back to.")] = None


class Wanted(NamedTuple):
    """An output format, the field that asks for it, and the path of its schema if it has one inside."""

    field: str
    format: OutputFormat
    schema_path: str | None = None


def wanted_format(fields: "EngineFields", own: Sequence[Wanted] = ()) -> Wanted | None:
    """The requested output format; `own` are those that fields of one dialect ask for. Raises `ServerError` if there
    are two."""
    asked = _of_response_format(fields.response_format)
    if (given := fields.structured_outputs) is not None:
        name = "structured_outputs"
        check_refused(given, name)
        kinds = {
            "json": None if given.json is None else schema_format(given.json, f"{name}.json"),
            "regex": None if given.regex is None else Regex(given.regex),
            "choice": None if given.choice is None else Choice(given.choice),
            "grammar": None if given.grammar is None else grammar_of(given.grammar),
            "json_object": JsonObject() if given.json_object else None,
        }
        if not any(kinds.values()):
            raise invalid(name, "must set one of `json`, `regex`, `choice`, `grammar` and `json_object`.")
        asked += [Wanted(f"{name}.{kind}", wanted) for kind, wanted in kinds.items() if wanted is not None]
    for name, schema in (("guided_json", fields.guided_json), ("json_schema", fields.json_schema)):
        if schema is not None:
            asked.append(Wanted(name, schema_format(schema, name)))
    for name, pattern in (("guided_regex", fields.guided_regex), ("regex", fields.regex)):
        if pattern is not None:
            asked.append(Wanted(name, Regex(pattern)))
    if fields.guided_choice is not None:
        asked.append(Wanted("guided_choice", Choice(fields.guided_choice)))
    sources = (("guided_grammar", fields.guided_grammar), ("grammar", fields.grammar), ("ebnf", fields.ebnf))
    asked += [Wanted(name, grammar_of(source)) for name, source in sources if source is not None]
    if len(asked) > 1:
        raise invalid(
            asked[1].field, f"can't be combined with `{asked[0].field}`: ask for one output format."
        )
    if len(own) + len(asked) > 1:
        raise invalid(own[0].field, "can't be combined with another output format.")
    return next(iter((*own, *asked)), None)


def _of_response_format(given: ResponseFormat | None) -> list[Wanted]:
    name = "response_format"
    match given:
        case None | TextFormat():
            return []
        case JsonObjectFormat(None):
            return [Wanted(name, JsonObject())]
        case JsonObjectFormat(schema):
            path = f"{name}.schema"
            return [Wanted(name, schema_format(schema or {}, path), path)]
        case JsonSchemaFormat(named):
            path, wanted = f"{name}.json_schema.schema", True if named.schema is None else named.schema
            return [Wanted(name, schema_format(wanted, path, named.name, bool(named.strict)), path)]
        case RegexFormat(pattern):
            return [Wanted(name, Regex(pattern))]
        case GrammarFormat(source):
            return [Wanted(name, grammar_of(source))]


def schema_format(schema: Schema, param: str, name: str | None = None, strict: bool = False) -> JsonSchema:
    if isinstance(schema, str):
        try:
            schema = from_json(schema)
        except (msgspec.DecodeError, RecursionError):
            raise invalid(param, "must be a JSON schema, or the JSON text of one.") from None
    check_depth(schema, param)
    return JsonSchema(convert(schema, dict[str, Any] | bool, param), name, strict)  # type: ignore[arg-type]


def grammar_of(source: str) -> Grammar:
    """GBNF rules are written `name ::= ...`, Lark's `name: ...`."""
    return Grammar("gbnf" if "::=" in source else "lark", source)


Effort = Literal["none", "off", "disabled", "minimal", "low", "medium", "high", "xhigh", "max"]
NO_EFFORT = ("none", "off", "disabled")
Verbosity = Literal["low", "medium", "high"]
Name = Annotated[str, Meta(min_length=1, max_length=512)]
Marker = Annotated[str, Meta(min_length=1, max_length=256)]
Tokens = Annotated[int, Meta(ge=0, le=100_000_000)]
TopLogprobs = Annotated[int, Meta(ge=0, le=20)]
Pixels = Annotated[int, Meta(ge=1, le=2**31)]
Frames = Annotated[int, Meta(ge=1, le=4096)]
FramesPerSecond = Annotated[float, Meta(gt=0, le=120)]
Seconds = Annotated[float, Meta(gt=0, le=86400)]
TokenIds = Annotated[tuple[Annotated[int, Meta(ge=0, lt=2**31)], ...], Meta(max_length=64)]
Variables = Annotated[dict[str, Any], Meta(max_length=64)]
Documents = Annotated[tuple[dict[str, Any], ...], Meta(max_length=1024)]
MostTokens = Annotated[int, Meta(ge=-1, le=100_000_000)]
"""A limit of new tokens; -1 is none, as in LM Studio and llama.cpp."""


class ReasoningOptions(Struct, kw_only=True):
    """The `reasoning` object of OpenAI, OpenRouter and mlx-vlm."""

    effort: Effort | None = None
    enabled: bool | None = None
    max_tokens: Tokens | None = None
    exclude: bool | None = None
    summary: Any = None
    generate_summary: Any = None
    context: Annotated[str | None, about("Accepted with a warning in the log.")] = None
    mode: str | None = None


class Compaction(Struct, kw_only=True):
    type: Literal["compaction"]
    compact_threshold: int | None = None


KeepAlive = Annotated[
    float | str | None,
    about("How long the model stays loaded, if an administrator asks: seconds, or `5m`; -1 for ever."),
]
LOOP_GUARD = about("What to do with an answer that repeats itself: `off`, `warn` or `stop`.")


class EngineFields(SamplingFields, kw_only=True, omit_defaults=True):
    """Base of the dialects' request structs."""

    response_format: Annotated[ResponseFormat | None, about("Form of the answer.")] = None
    structured_outputs: Annotated[
        StructuredOutputs | None, about("A JSON schema, regex, choice or grammar to follow.")
    ] = None
    guided_json: Annotated[Schema | None, about("JSON schema to follow.")] = None
    guided_regex: Annotated[Pattern | None, about("Regular expression to follow.")] = None
    guided_choice: Annotated[Options | None, about("Texts of which one is answered.")] = None
    guided_grammar: Annotated[GrammarText | None, about("Lark or GBNF grammar to follow.")] = None
    grammar: Annotated[GrammarText | None, about("Lark or GBNF grammar to follow.")] = None
    ebnf: Annotated[GrammarText | None, about("Lark or GBNF grammar to follow.")] = None
    regex: Annotated[Pattern | None, about("Regular expression to follow.")] = None
    json_schema: Annotated[Schema | None, about("JSON schema to follow (llama.cpp).")] = None
    enable_thinking: Annotated[bool | None, about("Think before answering.")] = None
    reasoning: Annotated[
        ReasoningOptions | bool | Effort | None, about("Effort and length of the reasoning.")
    ] = None
    reasoning_effort: Annotated[Effort | None, about("How much to think; none is off.")] = None
    thinking_budget: Annotated[Tokens | None, about("Most tokens of reasoning.")] = None
    thinking_token_budget: Annotated[Tokens | None, about("vLLM's name for it.")] = None
    thinking_start_token: Annotated[Marker | None, about("Text that opens reasoning.")] = None
    thinking_end_token: Annotated[Marker | None, about("Text that closes reasoning.")] = None
    include_reasoning: Annotated[bool | None, about("False leaves reasoning out.")] = None
    chat_template_kwargs: Annotated[Variables | None, about("Variables for the chat template.")] = None
    documents: Annotated[Documents | None, about("For templates that quote them.")] = None
    continue_final_message: Annotated[
        bool | None, about("Go on with the last assistant message instead of a new turn.")
    ] = None
    add_generation_prompt: Annotated[
        bool | None, about("False only together with `continue_final_message`.")
    ] = None
    tool_parser: Annotated[Name | None, about("Format of tool calls in the output.")] = None
    parse_tool_calls: Annotated[
        bool | None, about("False leaves calls in the text, as the model wrote them.")
    ] = None
    reasoning_format: Annotated[
        Literal["auto", "deepseek", "parsed", "hidden", "none", "raw", "deepseek-legacy"] | None,
        about("Of llama.cpp and Groq; reasoning is read apart (`parsed`), or left out (`hidden`)."),
    ] = None
    json_spacing: Annotated[
        JsonSpacing | None,
        about("White space in JSON that a format asks for: Pippin's own field, as the option."),
    ] = None
    min_tokens: Annotated[Tokens | None, about("Least tokens before an end.")] = None
    ignore_eos: Annotated[bool | None, about("Go on after the end-of-text token.")] = None
    loop_guard: Annotated[LoopGuard | None, LOOP_GUARD] = None
    stop_token_ids: Annotated[TokenIds | None, about("Tokens that end the answer.")] = None
    include_stop_str_in_output: Annotated[bool | None, about("Keep the stop text.")] = None
    adapter_path: Annotated[Name | None, about("Name of a LoRA adapter that is served.")] = None
    adapters: Annotated[Name | tuple[Name, ...] | None, about("The same, as mlx-lm's server has it.")] = None
    keep_alive: KeepAlive = None
    context_management: Annotated[
        Annotated[tuple[Compaction, ...], Meta(max_length=1)] | None,
        about("Compaction of a conversation that does not fit; [] is none."),
    ] = None
    truncation: Annotated[
        Literal["auto", "disabled"] | None, about("Drop the oldest messages that do not fit.")
    ] = None
    timeout: Annotated[Seconds | None, about("Seconds that the request may take.")] = None
    priority: Annotated[
        Annotated[int, Meta(ge=-(2**31), lt=2**31)] | None,
        about("Lower numbers run first; those below 0 are administrators'."),
    ] = None
    cache_salt: Annotated[
        Annotated[str, Meta(min_length=1, max_length=512)] | None,
        about("Keeps cached prompts apart from requests with another salt."),
    ] = None
    min_pixels: Annotated[Pixels | None, about("Least pixels of an image.")] = None
    max_pixels: Annotated[Pixels | None, about("Most pixels of an image.")] = None
    resize_shape: Annotated[
        Annotated[tuple[Annotated[int, Meta(ge=1, le=16384)], ...], Meta(min_length=1, max_length=2)] | None,
        about("Height and width that images are brought to."),
    ] = None
    video_fps: Annotated[FramesPerSecond | None, about("Frames a second of a video.")] = None
    video_max_frames: Annotated[Frames | None, about("Most frames of it.")] = None


def thinking_of(fields: EngineFields) -> Thinking:
    """Top-level fields win over the `reasoning` object, and both over `chat_template_kwargs`."""
    enabled, effort, budget = fields.enable_thinking, fields.reasoning_effort, fields.thinking_budget
    if budget is None:
        budget = fields.thinking_token_budget
    match fields.reasoning:
        case bool() as switch:
            enabled = switch if enabled is None else enabled
        case str() as word:
            effort = effort or word
        case ReasoningOptions() as options:
            if options.mode not in (None, "standard"):
                raise unsupported("reasoning.mode", "there is one mode; send `standard`.")
            effort = effort or options.effort
            enabled = options.enabled if enabled is None else enabled
            budget = options.max_tokens if budget is None else budget
    if effort in NO_EFFORT:
        enabled, effort = (False if enabled is None else enabled), None
    variables = fields.chat_template_kwargs or {}
    if enabled is None and isinstance(wish := variables.get("enable_thinking"), bool):
        enabled = wish
    return Thinking(
        enabled=enabled,
        budget=budget,
        effort=effort,
        start_marker=fields.thinking_start_token,
        end_marker=fields.thinking_end_token,
    )


def reasoning_warnings(fields: EngineFields) -> tuple[str, ...]:
    """Warns about `reasoning.context` instead of refusing it: agents set it themselves, and users can't unset it."""
    options = fields.reasoning
    if isinstance(options, ReasoningOptions) and options.context not in (None, "auto"):
        return (
            "`reasoning.context` has no effect: the chat template says which earlier reasoning is shown.",
        )
    return ()


def check_unsummarised(fields: EngineFields) -> None:
    """Refuses summaries of reasoning, for dialects whose answers have no place for them."""
    options = fields.reasoning
    if isinstance(options, ReasoningOptions):
        for name, asked in (("summary", options.summary), ("generate_summary", options.generate_summary)):
            if asked not in (None, "none"):
                raise unsupported(f"reasoning.{name}", "reasoning is given whole here; leave it out.")


def shows_reasoning(fields: EngineFields) -> bool:
    """Whether the answer may hold the model's reasoning."""
    if fields.reasoning_format in ("none", "raw", "deepseek-legacy"):
        raise unsupported(
            "reasoning_format",
            "reasoning is always read apart from the text; send `parsed`, or `hidden` to leave it out.",
        )
    if fields.reasoning_format == "hidden":
        return False
    if isinstance(fields.reasoning, ReasoningOptions) and fields.reasoning.exclude:
        return False
    return fields.include_reasoning is not False


def template_kwargs_of(fields: EngineFields, verbosity: Verbosity | None = None) -> dict[str, Any]:
    variables = dict(fields.chat_template_kwargs or {})
    check_depth(variables, "chat_template_kwargs")
    check_small(variables, "chat_template_kwargs", depth=16, nodes=128, size=16 << 10)
    for name in variables:
        if name in RESERVED_VARIABLES:
            raise unsupported(f"chat_template_kwargs.{name}", "this variable is set by the server.")
    if fields.documents is not None:
        variables["documents"] = list(fields.documents)
        check_depth(variables["documents"], "documents")
    if verbosity is not None:
        variables.setdefault("verbosity", verbosity)
    return variables


def request_of(
    fields: EngineFields,
    model: str,
    *,
    verbosity: Verbosity | None = None,
    own_formats: Sequence[Wanted] = (),
) -> GenerationRequest:
    """A request for nothing yet, with all fields applied that mean the same in every dialect. `own_formats`: the output
    formats that other fields of the dialect ask for."""
    wanted, structured = wanted_format(fields, own_formats), fields.structured_outputs
    is_compact = structured is not None and structured.disable_any_whitespace
    named = fields.adapters if isinstance(fields.adapters, tuple) else (fields.adapters,)
    adapters = {name: None for name in (fields.adapter_path, *named) if name is not None}
    if len(adapters) > 1:
        raise unsupported("adapters", "name one adapter for a request.")
    return GenerationRequest(
        model=model,
        sampling=sampling_of(fields),
        output_format=wanted and wanted.format,
        thinking=thinking_of(fields),
        template_kwargs=template_kwargs_of(fields, verbosity),
        overflow=overflow_of(fields),
        tool_format=fields.tool_parser,
        read_calls=fields.parse_tool_calls is not False,
        stop_token_ids=fields.stop_token_ids or (),
        include_stop=bool(fields.include_stop_str_in_output),
        ignore_eos=bool(fields.ignore_eos),
        loop_guard=fields.loop_guard,
        min_tokens=fields.min_tokens or 0,
        json_spacing="compact" if is_compact else fields.json_spacing,
        adapter=next(iter(adapters), None),
        cache_salt=fields.cache_salt,
        # The engine runs higher priorities first; vLLM's field means the opposite.
        priority=-(fields.priority or 0),
        timeout=fields.timeout,
        keep_alive=keep_alive_of(fields.keep_alive),
        names=called(response_format=wanted.schema_path or wanted.field) if wanted else (),
    )


def overflow_of(fields: EngineFields) -> OverflowPolicy | None:
    if fields.context_management is not None:
        if not fields.context_management:
            return "error"
        if fields.context_management[0].compact_threshold is not None:
            raise unsupported(
                "context_management[0].compact_threshold",
                "compaction begins when the conversation does not fit the context window; leave it out.",
            )
        return "summarize"
    return {"auto": "truncate", "disabled": "error", None: None}[fields.truncation]


def continues_final(fields: EngineFields) -> bool:
    if fields.continue_final_message:
        if fields.add_generation_prompt:
            raise invalid("add_generation_prompt", "must be false with `continue_final_message`.")
        return True
    if fields.add_generation_prompt is False:
        raise unsupported("add_generation_prompt", "false goes only with `continue_final_message`.")
    return False


def keep_alive_of(given: float | str | None) -> float | None:
    """Seconds, from a number or from Ollama's form (`300`, `5m`, `1h30m`, `-1`). Raises `ServerError`."""
    if given is None or isinstance(given, (int, float)):
        return given
    seconds = parse_duration(given)
    if seconds is None:
        raise invalid("keep_alive", 'must be a number of seconds or a duration such as "5m" or "1h30m".')
    return seconds


def with_media_options(messages: Sequence[Message], fields: EngineFields) -> tuple[Message, ...]:
    """The messages with the request's media options set on their images and videos."""
    shape = fields.resize_shape
    resize = None if shape is None else (shape[0], shape[-1])
    for_images = fields.min_pixels is not None or fields.max_pixels is not None or resize is not None
    for_videos = fields.video_fps is not None or fields.video_max_frames is not None
    if not (for_images or for_videos):
        return tuple(messages)

    def changed(given: Attachment, *_: object) -> tuple[Attachment]:
        match given:
            case Image():
                return (
                    replace(given, min_pixels=fields.min_pixels, max_pixels=fields.max_pixels, resize=resize),
                )
            case Video():  # a video's own options win
                most = given.max_frames or fields.video_max_frames
                return (replace(given, fps=given.fps or fields.video_fps, max_frames=most),)
            case _:
                return (given,)

    return with_attachments(messages, changed)
