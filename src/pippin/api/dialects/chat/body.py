"""The messages of Chat Completions in every shape that clients send."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct


class Marked(Struct, kw_only=True):
    """A content part; both markers ask the cache to keep the prompt up to here."""

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
    detail: Literal["auto", "low", "high", "original"] | None = None


class ImagePart(Marked, tag_field="type", tag="image_url", kw_only=True):
    image_url: ImageUrl | str
    detail: Literal["auto", "low", "high", "original"] | None = None


class InputImagePart(Marked, tag_field="type", tag="input_image", kw_only=True):
    image_url: ImageUrl | str | None = None
    file_id: str | None = None
    detail: Literal["auto", "low", "high", "original"] | None = None


class AudioData(Struct, kw_only=True):
    data: str
    format: Annotated[str, Meta(min_length=1, max_length=16)] | None = None


class InputAudioPart(Marked, tag_field="type", tag="input_audio", kw_only=True):
    input_audio: AudioData


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
    file: Any = None


class InputFilePart(Marked, tag_field="type", tag="input_file", kw_only=True):
    file_id: Any = None


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
