"""What the messages of Chat Completions mean."""

from typing import Any

import msgspec

from pippin.api.dialects.chat.body import (
    AssistantMessage,
    AudioUrlPart,
    ChatMessage,
    Content,
    ContentPart,
    DeveloperMessage,
    FilePart,
    FunctionMessage,
    GivenCall,
    ImagePart,
    ImageUrl,
    InputAudioPart,
    InputFilePart,
    InputImagePart,
    InputVideoPart,
    MediaUrl,
    ReasoningPart,
    RefusalPart,
    SystemMessage,
    TextPart,
    ThinkingPart,
    ToolMessage,
    UserMessage,
    VideoPart,
    VideoUrlPart,
)
from pippin.api.dialects.shared.fields import invalid, unsupported
from pippin.api.dialects.shared.media import source_of_base64, source_of_url
from pippin.core.conversation import (
    Audio,
    Detail,
    Image,
    Message,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Video,
)

MAX_MESSAGES = 16_384


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
    if isinstance(arguments, dict):  # some clients send what they parsed
        return msgspec.json.encode(arguments).decode()
    return arguments or "{}"


def _result_parts(parts: tuple[Part, ...], at: str) -> tuple[Text | Image, ...]:
    fit = tuple(part for part in parts if isinstance(part, (Text, Image)))
    if len(fit) != len(parts):
        raise unsupported(f"{at}.content", "a tool's result may hold text and images.")
    return fit


def _parts_of(content: Content, at: str) -> tuple[Part, ...]:
    if content is None:
        return ()
    if isinstance(content, str):
        return (Text(content),) if content else ()
    return tuple(_part_of(part, f"{at}[{place}]") for place, part in enumerate(content))


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
            if audio.data[:5].lower() in ("data:", "http:", "https"):
                return Audio(source_of_url(audio.data, f"{at}.input_audio.data"), audio.format)
            return Audio(source_of_base64(audio.data, f"{at}.input_audio.data"), audio.format)
        case AudioUrlPart(audio_url=address):
            return Audio(source_of_url(_url_of(address), f"{at}.audio_url"))
        case VideoPart(video=address) | VideoUrlPart(video_url=address) | InputVideoPart(video_url=address):
            source = source_of_url(_url_of(address), at)
            return Video(source, part.fps, part.max_frames)
        case FilePart() | InputFilePart():
            raise unsupported(f"{at}.file", "give the file's text as a `text` part, or its pages as images.")


def _url_of(address: MediaUrl | ImageUrl | str) -> str:
    return address if isinstance(address, str) else address.url


def _image_of(address: ImageUrl | str, detail: str | None, at: str) -> Image:
    if isinstance(address, ImageUrl):
        detail = address.detail or detail
    details: dict[str | None, Detail] = {"low": "low", "high": "high", "original": "high"}
    return Image(source_of_url(_url_of(address), at), details.get(detail, "auto"))
