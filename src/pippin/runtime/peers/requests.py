"""Writes a request for another server, in Chat Completions (or Completions, for a raw prompt).

Another Pippin gets every field. Other servers get the fields of OpenAI's contract and a few that the common engines
share; a request that needs more is refused, naming the field.
"""

import base64
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from pippin.core.conversation import (
    Audio,
    Image,
    Inline,
    MediaSource,
    Message,
    Part,
    Reasoning,
    Text,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
    Url,
    Video,
)
from pippin.core.errors import ServerError
from pippin.core.parameters import PARAMETERS
from pippin.core.requests import (
    Choice,
    GenerationRequest,
    Grammar,
    JsonObject,
    JsonSchema,
    OutputFormat,
    Regex,
    Thinking,
)

Fields = dict[str, Any]

CHAT: Final = "/v1/chat/completions"
RAW: Final = "/v1/completions"

OPENAI: Final = frozenset(
    ("temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "logit_bias")
)
"""Sampling parameters that every server with this API has."""

FORMATS: Final = {
    b"\x89PNG": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
}
"""Image types by their first bytes."""

RIFF_FORMATS: Final = {b"WEBP": "image/webp", b"AVI ": "video/x-msvideo"}
"""Types of RIFF files by the four bytes after the length of the file."""


class Upstream(msgspec.Struct, frozen=True):
    """A request body, and the path to send it to."""

    path: str
    body: Fields


def upstream_of(request: GenerationRequest, model: str, *, pippin: bool) -> Upstream:
    """Raises `ServerError` naming a field that only a Pippin would understand."""
    body: Fields = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": request.max_tokens,
        "n": request.n if request.n > 1 else None,
        "stop": list(request.stop) or None,
        # Other servers share one cache among all, and some refuse unknown fields.
        "cache_salt": request.cache_salt if pippin else None,
    }
    body |= _sampling(request, pippin=pippin)
    body |= _steering(request, pippin=pippin)
    if request.messages is None:
        path, more = RAW, _of_a_prompt(request, pippin=pippin)
    else:
        path, more = CHAT, _of_a_conversation(request, request.messages, pippin=pippin)
    return Upstream(path, {name: value for name, value in (body | more).items() if value is not None})


def _refused(field: str) -> ServerError:
    message = f"`{field}` can't be honoured: the model runs on another server, whose API has no word for it."
    return ServerError("unsupported", message, field)


def _only_pippin(asked: Fields, *, pippin: bool) -> Fields:
    """Fields that only a Pippin understands. Raises `ServerError` if one is set for another server."""
    given = {name: value for name, value in asked.items() if value is not None}
    if given and not pippin:
        raise _refused(next(iter(given)))
    return given


def _sampling(request: GenerationRequest, *, pippin: bool) -> Fields:
    sampling = request.sampling
    asked: Fields = {each.public_name: getattr(sampling, each.name) for each in PARAMETERS}
    asked["logit_bias"] = {str(token): bias for token, bias in (sampling.logit_bias or {}).items()} or None
    asked["dry_sequence_breakers"] = sampling.dry_sequence_breakers
    acting = {each.public_name: each for each in PARAMETERS}
    own = {
        name: value
        for name, value in asked.items()
        if name not in OPENAI and (name not in acting or acting[name].acts(value))
    }
    common = {name: asked[name] for name in OPENAI}
    return common | _only_pippin(own, pippin=pippin)


def _steering(request: GenerationRequest, *, pippin: bool) -> Fields:
    """Fields that control the engine. The time limit and the choice among `best_of` stay here."""
    if request.context_limit is not None:
        raise _refused("num_ctx")
    if request.echo or request.prompt_logprobs is not None:
        raise _refused("echo")
    own = {
        "min_tokens": request.min_tokens or None,
        "ignore_eos": request.ignore_eos or None,
        "stop_token_ids": list(request.stop_token_ids) or None,
        "include_stop_str_in_output": request.include_stop or None,
        "adapter_path": request.adapter,
        "priority": -request.priority or None,
        "keep_alive": request.keep_alive,
        **msgspec.structs.asdict(request.diffusion),
    }
    format_fields = _output_format(request.output_format, pippin=pippin)
    return _only_pippin(own, pippin=pippin) | format_fields


def _output_format(wanted: OutputFormat | None, *, pippin: bool) -> Fields:
    match wanted:
        case None:
            return {}
        case JsonObject(compact):
            standard: Fields = {"response_format": {"type": "json_object"}}
            structured: Fields = {"json_object": True}
        case JsonSchema(schema, name, strict, compact):
            named = {"name": name or "answer", "schema": schema, "strict": strict}
            standard = {"response_format": {"type": "json_schema", "json_schema": named}}
            structured = {"json": schema}
        case Regex(pattern):
            standard, structured, compact = {}, {"regex": pattern}, False
        case Choice(options):
            standard, structured, compact = {}, {"choice": list(options)}, False
        case Grammar(_, source):
            standard, structured, compact = {}, {"grammar": source}, False
    if standard and not compact:
        return standard
    if compact:
        structured["disable_any_whitespace"] = True
    return _only_pippin({"structured_outputs": structured}, pippin=pippin)


def _of_a_prompt(request: GenerationRequest, *, pippin: bool) -> Fields:
    if request.logprobs is not None:
        raise _refused("logprobs")
    prompt = request.prompt if isinstance(request.prompt, str) else list(request.prompt or ())
    progress = {"return_progress": True} if pippin else {}
    return {"prompt": prompt, "suffix": request.suffix} | progress


def _of_a_conversation(request: GenerationRequest, messages: tuple[Message, ...], *, pippin: bool) -> Fields:
    fields: Fields = {
        "messages": [drawn for message in messages for drawn in _message(message, pippin=pippin)],
        "tools": [_tool(tool) for tool in request.tools] or None,
        "tool_choice": _choice(request.tool_choice) if request.tools else None,
        "parallel_tool_calls": None if request.parallel_tool_calls or not request.tools else False,
        "logprobs": None if request.logprobs is None else True,
        "top_logprobs": request.logprobs,
    }
    own = {
        "tool_parser": request.tool_format,
        "parse_tool_calls": None if request.read_calls else False,
        "continue_final_message": request.continue_final or None,
        "truncation": {"truncate": "auto", "error": None, None: None, "summarize": None}[request.overflow],
    }
    fields |= _only_pippin(own, pippin=pippin) | _thinking(request, pippin=pippin)
    if pippin:
        fields |= {"return_progress": True} | _media_options(messages)
    return fields


def _thinking(request: GenerationRequest, *, pippin: bool) -> Fields:
    """`reasoning_effort` is OpenAI's; the common engines read `enable_thinking` as a template variable."""
    asked: Thinking = request.thinking
    variables = dict(request.template_kwargs)
    own: Fields = {
        "thinking_budget": asked.budget,
        "thinking_start_token": asked.start_marker,
        "thinking_end_token": asked.end_marker,
    }
    if pippin:
        own["enable_thinking"] = asked.enabled
    elif asked.enabled is not None:
        variables["enable_thinking"] = asked.enabled
    common = {"reasoning_effort": asked.effort, "chat_template_kwargs": variables or None}
    return common | _only_pippin(own, pippin=pippin)


def _tool(tool: Tool) -> Fields:
    function: Fields = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.parameters is not None:
        function["parameters"] = tool.parameters
    if tool.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _choice(choice: ToolChoice) -> Any:
    named = [{"type": "function", "function": {"name": name}} for name in choice.names]
    if not named or choice.mode == "none":
        return choice.mode
    if choice.mode == "required" and len(named) == 1:
        return named[0]
    return {"type": "allowed_tools", "allowed_tools": {"mode": choice.mode, "tools": named}}


def _message(message: Message, *, pippin: bool) -> list[Fields]:
    """The messages to send for one message: several if it holds results of several tools."""
    results = [part for part in message.parts if isinstance(part, ToolResult)]
    drawn: list[Fields] = [
        {"role": "tool", "tool_call_id": result.call_id, "content": _result(result)}
        | ({} if result.name is None else {"name": result.name})
        for result in results
    ]
    rest = [part for part in message.parts if not isinstance(part, ToolResult)]
    if rest or not results:
        drawn.append(_turn(message, rest))
    if message.pin and pippin and isinstance(content := drawn[-1]["content"], list) and content:
        content[-1]["cache_control"] = {"type": "ephemeral"}
    return drawn


def _turn(message: Message, parts: Sequence[Part]) -> Fields:
    turn: Fields = {"role": message.role}
    if message.name is not None:
        turn["name"] = message.name
    said = [part for part in parts if not isinstance(part, Reasoning | ToolCall)]
    turn["content"] = _content(said)
    if thoughts := "".join(part.text for part in parts if isinstance(part, Reasoning)):
        turn["reasoning_content"] = thoughts
    calls = [part for part in parts if isinstance(part, ToolCall)]
    if calls:
        turn["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]
        turn["content"] = turn["content"] or None
    return turn


def _result(result: ToolResult) -> Any:
    content = _content(list(result.parts))
    if result.is_error:  # OpenAI's API has no field for it; the model reads the word
        return (
            f"Error: {content}"
            if isinstance(content, str)
            else [{"type": "text", "text": "Error:"}, *content]
        )
    return content


def _content(parts: Sequence[Part]) -> Any:
    """A single text is sent as a string, as the oldest servers expect."""
    if all(isinstance(part, Text) for part in parts) and len(parts) <= 1:
        return "".join(part.text for part in parts if isinstance(part, Text))
    return [_part(part) for part in parts]


def _part(part: Part) -> Fields:
    match part:
        case Text(text):
            return {"type": "text", "text": text}
        case Image(source, detail):
            address: Fields = {"url": _address(source, "image/png")}
            return {
                "type": "image_url",
                "image_url": address | ({} if detail == "auto" else {"detail": detail}),
            }
        case Audio(source, format):
            match source:
                case Inline(data):
                    audio = {"data": base64.b64encode(data).decode(), "format": format or "wav"}
                    return {"type": "input_audio", "input_audio": audio}
                case Url(url):
                    return {"type": "audio_url", "audio_url": {"url": url}}
        case Video(source, fps, most):
            options = {"fps": fps, "max_frames": most}
            given = {name: value for name, value in options.items() if value is not None}
            return {"type": "video_url", "video_url": {"url": _address(source, "video/mp4")}} | given
        case Reasoning() | ToolCall() | ToolResult():
            raise AssertionError("these have places of their own in a message")


def _address(source: MediaSource, mime: str) -> str:
    match source:
        case Url(url):
            return url
        case Inline(data, given):
            return f"data:{given or _guessed(data) or mime};base64,{base64.b64encode(data).decode()}"


def _guessed(data: bytes) -> str | None:
    """The media type that the first bytes tell; None if they are of no known format."""
    if data.startswith(b"RIFF"):
        return RIFF_FORMATS.get(data[8:12])
    return next((known for start, known in FORMATS.items() if data.startswith(start)), None)


def _media_options(messages: tuple[Message, ...]) -> Fields:
    """How images are to be read; all images of a request have the same settings."""
    for message in messages:
        for part in message.parts:
            if isinstance(part, Image):
                return {
                    "min_pixels": part.min_pixels,
                    "max_pixels": part.max_pixels,
                    "resize_shape": None if part.resize is None else list(part.resize),
                }
    return {}
