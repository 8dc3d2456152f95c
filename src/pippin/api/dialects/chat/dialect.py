"""The dialect of OpenAI's Chat Completions: its body and messages, and how they are decoded into a request."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from pippin.api.dialects.base import DecodeContext, Decoded, RunInfo
from pippin.api.dialects.chat.encode import ID_PREFIX, ChatCompletion, ChatEncoder, ChatShape
from pippin.api.dialects.chat.tools import GivenChoice, GivenTool, tool_choice_of, tools_of, toolsets_of
from pippin.api.dialects.shared import engine_fields as engine
from pippin.api.dialects.shared import openai as shared
from pippin.api.dialects.shared.engine_fields import (
    MostTokens,
    ResponseFormat,
    Verbosity,
    output_format_of,
    sampling_of,
    with_media_options,
)
from pippin.api.dialects.shared.fields import Contract, called, invalid, unsupported
from pippin.api.dialects.shared.media import (
    FileContent,
    GivenDetail,
    file_of,
    image_of,
    placed,
    sound_of,
    source_of_url,
)
from pippin.api.dialects.shared.openai import OpenAIErrors
from pippin.core.conversation import (
    Attachment,
    Audio,
    Image,
    Message,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Video,
)
from pippin.core.requests import GenerationRequest

MAX_MESSAGES = 16_384


class Marked(Struct, kw_only=True):
    """A content part. Both markers ask the prefix cache to keep the prompt up to this part."""

    prompt_cache_breakpoint: Any = None
    cache_control: Any = None


class TextPart(Marked, tag_field="type", tag="text"):
    text: str


class InputTextPart(TextPart, tag="input_text"):
    pass


class OutputTextPart(TextPart, tag="output_text"):
    pass


class RefusalPart(Marked, tag_field="type", tag="refusal"):
    refusal: str


class ThinkingPart(Marked, tag_field="type", tag="thinking", kw_only=True):
    thinking: str
    signature: str | None = None


class ReasoningPart(Marked, tag_field="type", tag="reasoning"):
    text: str


class ImageUrl(Struct, kw_only=True):
    url: str
    detail: GivenDetail | None = None


class ImagePart(Marked, tag_field="type", tag="image_url", kw_only=True):
    image_url: ImageUrl | str
    detail: GivenDetail | None = None


class InputImagePart(Marked, tag_field="type", tag="input_image", kw_only=True):
    image_url: ImageUrl | str | None = None
    file_id: str | None = None
    detail: GivenDetail | None = None


class AudioData(Struct, kw_only=True):
    data: str
    format: Annotated[str, Meta(min_length=1, max_length=16)] | None = None


class InputAudioPart(Marked, tag_field="type", tag="input_audio", kw_only=True):
    input_audio: AudioData | str


class MediaUrl(Struct, kw_only=True):
    url: str


class AudioUrlPart(Marked, tag_field="type", tag="audio_url", kw_only=True):
    audio_url: MediaUrl | str


class VideoUrlPart(Marked, tag_field="type", tag="video_url", kw_only=True):
    video_url: MediaUrl | str
    fps: Annotated[float, Meta(gt=0, le=120)] | None = None
    max_frames: Annotated[int, Meta(ge=1, le=4096)] | None = None


class VideoPart(Marked, tag_field="type", tag="video", kw_only=True):
    video: str
    fps: Annotated[float, Meta(gt=0, le=120)] | None = None
    max_frames: Annotated[int, Meta(ge=1, le=4096)] | None = None


class InputVideoPart(Marked, tag_field="type", tag="input_video", kw_only=True):
    video_url: MediaUrl | str
    fps: Annotated[float, Meta(gt=0, le=120)] | None = None
    max_frames: Annotated[int, Meta(ge=1, le=4096)] | None = None


class FilePart(Marked, tag_field="type", tag="file", kw_only=True):
    file: FileContent


class InputFilePart(Marked, tag_field="type", tag="input_file", kw_only=True):
    file_data: str | None = None
    file_id: str | None = None
    file_url: str | None = None
    filename: str | None = None


ContentPart = (
    TextPart
    | InputTextPart
    | OutputTextPart
    | RefusalPart
    | ThinkingPart
    | ReasoningPart
    | ImagePart
    | InputImagePart
    | InputAudioPart
    | AudioUrlPart
    | VideoUrlPart
    | VideoPart
    | InputVideoPart
    | FilePart
    | InputFilePart
)
Content = str | tuple[ContentPart, ...] | None


class CalledFunction(Struct, kw_only=True):
    name: Annotated[str, Meta(min_length=1, max_length=256)]
    arguments: str | dict[str, Any] | None = None


class GivenCall(Struct, kw_only=True):
    id: str | None = None
    type: str | None = None
    function: CalledFunction | None = None
    custom: Any = None


class SystemMessage(Struct, tag_field="role", tag="system", kw_only=True):
    content: Content
    name: str | None = None


class DeveloperMessage(SystemMessage, tag="developer"):
    pass


class UserMessage(Struct, tag_field="role", tag="user", kw_only=True):
    content: Content
    name: str | None = None


class AssistantMessage(Struct, tag_field="role", tag="assistant", kw_only=True):
    content: Content = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[GivenCall, ...] | None = None
    function_call: CalledFunction | None = None
    audio: Any = None
    name: str | None = None
    partial: bool | None = None  # a prefill, as mlx-openai-server marks it
    prefix: bool | None = None  # the same, as Mistral and DeepSeek do


class ToolMessage(Struct, tag_field="role", tag="tool", kw_only=True):
    content: Content
    tool_call_id: str
    name: str | None = None


class FunctionMessage(Struct, tag_field="role", tag="function", kw_only=True):
    content: Content
    name: str


ChatMessage = (
    SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage | FunctionMessage
)


def is_prefill(messages: tuple[ChatMessage, ...]) -> bool:
    last = messages[-1] if messages else None
    return isinstance(last, AssistantMessage) and bool(last.partial or last.prefix)


def messages_of(messages: tuple[ChatMessage, ...]) -> tuple[Message, ...]:
    if not messages:
        raise invalid("messages", "must hold at least one message.")
    if len(messages) > MAX_MESSAGES:
        raise invalid("messages", f"must not hold more than {MAX_MESSAGES} messages.")
    return tuple(_message_of(message, f"messages[{place}]") for place, message in enumerate(messages))


def _message_of(message: ChatMessage, at: str) -> Message:
    pin = isinstance(message.content, tuple) and any(_is_marked(part) for part in message.content)
    parts = _parts_of(message.content, f"{at}.content")
    match message:
        case DeveloperMessage():
            return Message("developer", parts, message.name, pin)
        case SystemMessage():
            return Message("system", parts, message.name, pin)
        case UserMessage():
            if message.content is None:
                raise invalid(f"{at}.content", "must be a string or a list of parts.")
            return Message("user", parts, message.name, pin)
        case AssistantMessage():
            return Message("assistant", _assistant_parts(message, parts, at), message.name, pin)
        case ToolMessage():
            result = ToolResult(message.tool_call_id, _result_parts(parts, at), message.name)
            return Message("tool", (result,), pin=pin)
        case FunctionMessage():
            return Message(
                "tool", (ToolResult(message.name, _result_parts(parts, at), message.name),), pin=pin
            )


def _is_marked(part: ContentPart) -> bool:
    return part.prompt_cache_breakpoint is not None or part.cache_control is not None


def _assistant_parts(message: AssistantMessage, said: tuple[Part, ...], at: str) -> tuple[Part, ...]:
    if message.audio is not None:
        raise unsupported(f"{at}.audio", "give what was said as text in `content`.")
    parts: list[Part] = []
    thought = message.reasoning_content or message.reasoning
    if thought and not any(isinstance(part, Reasoning) for part in said):
        parts.append(Reasoning(thought))
    parts += said
    if message.refusal:
        parts.append(Text(message.refusal))
    for place, call in enumerate(message.tool_calls or ()):
        parts.append(_call_of(call, f"{at}.tool_calls[{place}]"))
    if message.function_call is not None:
        called = message.function_call
        parts.append(ToolCall(called.name, called.name, _arguments_of(called.arguments)))
    if not parts and message.content is None:
        raise invalid(f"{at}.content", "is required unless `tool_calls` is given.")
    return tuple(parts)


def _call_of(call: GivenCall, at: str) -> ToolCall:
    if call.function is None:
        if call.custom is not None or call.type == "custom":
            raise unsupported(f"{at}.custom", "only calls of functions are supported.")
        raise invalid(f"{at}.function", "is required.")
    name = call.function.name
    return ToolCall(call.id or name, name, _arguments_of(call.function.arguments))


def _arguments_of(arguments: str | dict[str, Any] | None) -> str:
    if isinstance(arguments, dict):  # some clients send parsed arguments
        return msgspec.json.encode(arguments).decode()
    return arguments or "{}"


def _result_parts(parts: tuple[Part, ...], at: str) -> tuple[Text | Attachment, ...]:
    fit = tuple(part for part in parts if isinstance(part, Text | Attachment))
    if len(fit) != len(parts):
        raise unsupported(f"{at}.content", "a tool's result may hold text and media.")
    return fit


def _parts_of(content: Content, at: str) -> tuple[Part, ...]:
    if content is None:
        return ()
    if isinstance(content, str):
        return (Text(content),) if content else ()
    return tuple(
        placed(_part_of(part, f"{at}[{place}]"), f"{at}[{place}]") for place, part in enumerate(content)
    )


def _part_of(part: ContentPart, at: str) -> Part:
    match part:
        case TextPart(text=text):
            return Text(text)
        case RefusalPart(refusal=text):
            return Text(text)
        case ThinkingPart(thinking=text, signature=signature):
            return Reasoning(text, signature)
        case ReasoningPart(text=text):
            return Reasoning(text)
        case ImagePart(image_url=address, detail=detail):
            return _image_of(address, detail, f"{at}.image_url")
        case InputImagePart(image_url=address, detail=detail):
            if address is None:
                raise unsupported(f"{at}.file_id", "give the image as `image_url`, by address or as `data:`.")
            return _image_of(address, detail, f"{at}.image_url")
        case InputAudioPart(input_audio=audio):
            if isinstance(audio, str):
                return sound_of(audio, None, f"{at}.input_audio")
            return sound_of(audio.data, audio.format, f"{at}.input_audio.data")
        case AudioUrlPart(audio_url=address):
            return Audio(source_of_url(_url_of(address), f"{at}.audio_url"))
        case VideoPart(video=address) | VideoUrlPart(video_url=address) | InputVideoPart(video_url=address):
            source = source_of_url(_url_of(address), at)
            return Video(source, part.fps, part.max_frames)
        case FilePart(file=file):
            return file_of(file, f"{at}.file")
        case InputFilePart(file_data=data, file_id=file_id, file_url=url, filename=name):
            return file_of(FileContent(file_data=data, file_id=file_id, file_url=url, filename=name), at)


def _url_of(address: MediaUrl | ImageUrl | str) -> str:
    return address if isinstance(address, str) else address.url


def _image_of(address: ImageUrl | str, detail: GivenDetail | None, at: str) -> Image:
    if isinstance(address, ImageUrl):
        detail = address.detail or detail
    return image_of(_url_of(address), detail, at)


class PredictedText(Struct, tag_field="type", tag="text", kw_only=True):
    text: str


class Prediction(Struct, tag_field="type", tag="content", kw_only=True):
    content: str | tuple[PredictedText, ...]


def prediction_of(prediction: Prediction | None) -> str | None:
    if prediction is None:
        return None
    content = prediction.content
    return (content if isinstance(content, str) else "".join(part.text for part in content)) or None


class ChatRequest(shared.OpenAIFields, kw_only=True, omit_defaults=True):
    messages: Annotated[
        tuple[ChatMessage, ...],
        Meta(description="The conversation so far.", extra_json_schema={"minItems": 1}),
    ]
    max_completion_tokens: Annotated[
        MostTokens | None,
        Meta(description="Most new tokens, reasoning among them; wins over `max_tokens`."),
    ] = None
    tools: Annotated[tuple[GivenTool, ...] | None, Meta(description="Functions that may be called.")] = None
    tool_choice: Annotated[
        GivenChoice | None, Meta(description="Whether and which of them must be called.")
    ] = None
    parallel_tool_calls: Annotated[bool | None, Meta(description="False stops after one call.")] = None
    response_format: Annotated[ResponseFormat | None, Meta(description="Form of the answer.")] = None
    logprobs: Annotated[bool | None, Meta(description="Report the log probability of each token.")] = None
    top_logprobs: Annotated[
        Annotated[int, Meta(ge=0, le=20)] | None, Meta(description="And of this many others beside it.")
    ] = None
    modalities: Annotated[tuple[Literal["text", "audio"], ...] | None, Meta(description='Only ["text"].')] = (
        None
    )
    verbosity: Annotated[Verbosity | None, Meta(description="Handed to the chat template.")] = None
    prediction: Annotated[
        Prediction | None,
        Meta(description="Text that the answer is expected to repeat: it comes sooner then."),
    ] = None


ACCEPTED = {name: why for name, why in shared.ACCEPTED.items() if name != "prediction"}
REFUSED = shared.REFUSED | {
    "audio": "answers are text; use /v1/audio/speech to speak them.",
    "functions": "it is the old name of `tools`; use that.",
    "function_call": "it is the old name of `tool_choice`; use that.",
    "moderation": "Pippin runs no moderation model.",
    "web_search_options": "nothing here searches the web; give the model a tool, or an MCP server.",
    "best_of": "use `n`, with `logprobs`, and keep the likeliest.",
    "suffix": "use /v1/completions.",
    "echo": "use /v1/completions.",
    "prompt_logprobs": "use /v1/completions with `echo` and `logprobs`.",
    "add_special_tokens": "the chat template adds them.",
}


class ChatDialect(OpenAIErrors):
    name = "chat_completions"
    path = "/chat/completions"
    id_prefix = ID_PREFIX
    answer = ChatCompletion
    contract = Contract(ChatRequest, ACCEPTED, REFUSED, frozenset({"web_search_options"}))

    def decode(self, body: bytes, context: DecodeContext) -> Decoded[ChatShape]:
        fields, ignored = self.contract.decode(body)
        _check(fields)
        return Decoded(
            requests=(request_of(fields),),
            shape=ChatShape(
                stream=shared.stream_shape_of(fields, usage_unasked=context.stream_usage),
                n=fields.n or 1,
                logprobs=bool(fields.logprobs),
                reasoning=engine.shows_reasoning(fields),
            ),
            stream=bool(fields.stream),
            ignored=ignored,
            warnings=engine.reasoning_warnings(fields),
        )

    def encoder(self, decoded: Decoded[ChatShape], run: RunInfo) -> ChatEncoder:
        return ChatEncoder(decoded.shape, run)


def request_of(fields: ChatRequest) -> GenerationRequest:
    """The request in a body. The form of the answer (`stream`, `n`, `logprobs`) is in the shape."""
    request = GenerationRequest(
        model=fields.model,
        messages=with_media_options(messages_of(fields.messages), fields),
        parallel_tool_calls=fields.parallel_tool_calls is not False,
        tool_format=fields.tool_parser,
        read_calls=fields.parse_tool_calls is not False,
        sampling=sampling_of(fields),
        output_format=output_format_of(fields, fields.response_format),
        stop=shared.stops_of(fields.stop),
        max_tokens=shared.limit_of(fields.max_completion_tokens or fields.max_tokens),
        n=fields.n or 1,
        logprobs=(fields.top_logprobs or 0) if fields.logprobs else None,
        thinking=engine.thinking_of(fields),
        template_kwargs=engine.template_kwargs_of(fields, fields.verbosity),
        continue_final=engine.continues_final(fields) or is_prefill(fields.messages),
        overflow=engine.overflow_of(fields),
        prediction=prediction_of(fields.prediction),
        names=called(
            max_tokens="max_tokens" if fields.max_completion_tokens is None else "max_completion_tokens",
            response_format=engine.format_field_of(fields, fields.response_format),
        ),
    )
    request = engine.steered(request, fields)
    if fields.tools is None and fields.tool_choice is None:
        return request
    tools, toolsets = tools_of(fields.tools), toolsets_of(fields.tools)
    choice = tool_choice_of(fields.tool_choice, tools, toolsets)
    return replace(request, tools=tools, toolsets=toolsets, tool_choice=choice)


def _check(fields: ChatRequest) -> None:
    shared.check_values(fields)
    engine.check_unsummarised(fields)
    if fields.modalities is not None and fields.modalities != ("text",):
        raise unsupported("modalities", 'answers are text; send ["text"] or leave it out.')
    if fields.top_logprobs is not None and not fields.logprobs:
        raise invalid("top_logprobs", "needs `logprobs` to be true.")
    for name in ("max_tokens", "max_completion_tokens"):
        if getattr(fields, name) == 0:
            raise invalid(name, "must be at least 1.")
    if (
        fields.continue_final_message
        and fields.messages
        and fields.messages[-1].__struct_config__.tag != "assistant"
    ):
        raise invalid("continue_final_message", "needs the last message to be the assistant's.")


dialect = ChatDialect()
