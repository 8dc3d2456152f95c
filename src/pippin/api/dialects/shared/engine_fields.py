"""The fields beyond sampling by which clients steer the engine, in the words of the replaced servers."""

import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from pippin.api.dialects.shared.fields import check_depth, check_small, invalid, unsupported
from pippin.api.dialects.shared.output_formats import StructureFields
from pippin.core.requests import RESERVED_VARIABLES, GenerationRequest, OverflowPolicy, Thinking

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def parse_duration(text: str) -> float | None:
    """Seconds of `90`, `5m`, `1h30m` or `-1`; None for what is no duration."""
    if re.fullmatch(r"-?\d{1,9}(\.\d{1,6})?", text):
        return float(text)
    if not re.fullmatch(r"-?(\d{1,9}(\.\d{1,6})?(ms|s|m|h|d))+", text):
        return None
    pieces = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", text)
    seconds = sum(float(number) * _UNITS[unit] for number, unit in pieces)
    return -seconds if text.startswith("-") else seconds


Effort = Literal["none", "off", "disabled", "minimal", "low", "medium", "high", "xhigh", "max"]
NO_EFFORT = ("none", "off", "disabled")
Verbosity = Literal["low", "medium", "high"]
Name = Annotated[str, Meta(min_length=1, max_length=512)]
Marker = Annotated[str, Meta(min_length=1, max_length=256)]
Tokens = Annotated[int, Meta(ge=0, le=100_000_000)]


class ReasoningOptions(Struct, kw_only=True):
    """The `reasoning` object of OpenAI, OpenRouter and mlx-vlm."""

    effort: Effort | None = None
    enabled: bool | None = None
    max_tokens: Tokens | None = None
    exclude: bool | None = None
    summary: Any = None
    generate_summary: Any = None
    context: Annotated[str | None, Meta(description="Accepted with a warning in the log.")] = None
    mode: str | None = None


class Compaction(Struct, kw_only=True):
    type: Literal["compaction"]
    compact_threshold: int | None = None


class EngineFields(StructureFields, kw_only=True, omit_defaults=True):
    """Inherited by the request structs of the dialects."""

    enable_thinking: Annotated[bool | None, Meta(description="Think before answering.")] = None
    reasoning: Annotated[
        ReasoningOptions | bool | Effort | None, Meta(description="Effort and length of the reasoning.")
    ] = None
    reasoning_effort: Annotated[Effort | None, Meta(description="How much to think; none is off.")] = None
    thinking_budget: Annotated[Tokens | None, Meta(description="Most tokens of reasoning.")] = None
    thinking_token_budget: Annotated[Tokens | None, Meta(description="vLLM's name for it.")] = None
    thinking_start_token: Annotated[Marker | None, Meta(description="Text that opens reasoning.")] = None
    thinking_end_token: Annotated[Marker | None, Meta(description="Text that closes reasoning.")] = None
    include_reasoning: Annotated[bool | None, Meta(description="False leaves reasoning out.")] = None
    chat_template_kwargs: Annotated[
        Annotated[dict[str, Any], Meta(max_length=64)] | None,
        Meta(description="Variables for the chat template."),
    ] = None
    documents: Annotated[
        Annotated[tuple[dict[str, Any], ...], Meta(max_length=1024)] | None,
        Meta(description="For templates that quote them."),
    ] = None
    continue_final_message: Annotated[
        bool | None, Meta(description="Go on with the last assistant message instead of a new turn.")
    ] = None
    add_generation_prompt: Annotated[
        bool | None, Meta(description="False only together with `continue_final_message`.")
    ] = None
    tool_parser: Annotated[Name | None, Meta(description="Format of tool calls in the output.")] = None
    parse_tool_calls: Annotated[
        bool | None, Meta(description="False leaves calls in the text, as the model wrote them.")
    ] = None
    reasoning_format: Annotated[
        Literal["auto", "deepseek", "parsed", "hidden", "none", "raw", "deepseek-legacy"] | None,
        Meta(
            description="Of llama.cpp and Groq; reasoning is read apart (`parsed`), or left out (`hidden`)."
        ),
    ] = None
    min_tokens: Annotated[Tokens | None, Meta(description="Least tokens before an end.")] = None
    ignore_eos: Annotated[bool | None, Meta(description="Go on after the end-of-text token.")] = None
    stop_token_ids: Annotated[
        Annotated[tuple[Annotated[int, Meta(ge=0, lt=2**31)], ...], Meta(max_length=64)] | None,
        Meta(description="Tokens that end the answer."),
    ] = None
    include_stop_str_in_output: Annotated[bool | None, Meta(description="Keep the stop text.")] = None
    adapter_path: Annotated[Name | None, Meta(description="Name of a LoRA adapter that is served.")] = None
    adapters: Annotated[
        Name | tuple[Name, ...] | None, Meta(description="The same, as mlx-lm's server has it.")
    ] = None
    keep_alive: Annotated[
        float | str | None,
        Meta(description="How long the model stays loaded: seconds, or `5m`; -1 for ever."),
    ] = None
    context_management: Annotated[
        Annotated[tuple[Compaction, ...], Meta(max_length=1)] | None,
        Meta(description="Compaction of a conversation that does not fit; [] is none."),
    ] = None
    truncation: Annotated[
        Literal["auto", "disabled"] | None, Meta(description="Drop the oldest messages that do not fit.")
    ] = None
    timeout: Annotated[
        Annotated[float, Meta(gt=0, le=86400)] | None, Meta(description="Seconds that the request may take.")
    ] = None
    priority: Annotated[
        Annotated[int, Meta(ge=-(2**31), lt=2**31)] | None, Meta(description="Lower numbers run first.")
    ] = None
    cache_salt: Annotated[
        Annotated[str, Meta(min_length=1, max_length=512)] | None,
        Meta(description="Keeps cached prompts apart from requests with another salt."),
    ] = None
    min_pixels: Annotated[
        Annotated[int, Meta(ge=1, le=2**31)] | None, Meta(description="Least pixels of an image.")
    ] = None
    max_pixels: Annotated[
        Annotated[int, Meta(ge=1, le=2**31)] | None, Meta(description="Most pixels of an image.")
    ] = None
    resize_shape: Annotated[
        Annotated[tuple[Annotated[int, Meta(ge=1, le=16384)], ...], Meta(min_length=1, max_length=2)] | None,
        Meta(description="Height and width that images are brought to."),
    ] = None
    video_fps: Annotated[
        Annotated[float, Meta(gt=0, le=120)] | None, Meta(description="Frames a second of a video.")
    ] = None
    video_max_frames: Annotated[
        Annotated[int, Meta(ge=1, le=4096)] | None, Meta(description="Most frames of it.")
    ] = None


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
    """Agents ask for a context of their own accord, where no person could take it back."""
    options = fields.reasoning
    if isinstance(options, ReasoningOptions) and options.context not in (None, "auto"):
        return (
            "`reasoning.context` has no effect: the chat template says which earlier reasoning is shown.",
        )
    return ()


def check_unsummarised(fields: EngineFields) -> None:
    """For dialects whose answers have no place for summaries."""
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
    if verbosity is not None:
        variables.setdefault("verbosity", verbosity)
    check_depth(variables, "chat_template_kwargs")
    return variables


def steered(request: GenerationRequest, fields: EngineFields) -> GenerationRequest:
    """The request with the fields that mean the same in every dialect."""
    return msgspec.structs.replace(
        request,
        stop_token_ids=fields.stop_token_ids or (),
        include_stop=bool(fields.include_stop_str_in_output),
        ignore_eos=bool(fields.ignore_eos),
        min_tokens=fields.min_tokens or 0,
        adapter=adapter_of(fields),
        cache_salt=fields.cache_salt,
        priority=priority_of(fields),
        timeout=fields.timeout,
        keep_alive=keep_alive_of(fields),
    )


def adapter_of(fields: EngineFields) -> str | None:
    names = fields.adapters if isinstance(fields.adapters, tuple) else (fields.adapters,)
    asked = [name for name in (fields.adapter_path, *names) if name is not None]
    if len(set(asked)) > 1:
        raise unsupported("adapters", "name one adapter for a request.")
    return asked[0] if asked else None


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


def priority_of(fields: EngineFields) -> int:
    """In the engine higher runs first; in vLLM's field lower does."""
    return -(fields.priority or 0)


def resize_of(fields: EngineFields) -> tuple[int, int] | None:
    if fields.resize_shape is None:
        return None
    return fields.resize_shape[0], fields.resize_shape[-1]


def keep_alive_of(fields: EngineFields) -> float | None:
    """Seconds, from a number or from Ollama's form (`300`, `5m`, `1h30m`, `-1`)."""
    given = fields.keep_alive
    if given is None or isinstance(given, (int, float)):
        return given
    seconds = parse_duration(given)
    if seconds is None:
        raise invalid("keep_alive", 'must be a number of seconds or a duration such as "5m" or "1h30m".')
    return seconds
