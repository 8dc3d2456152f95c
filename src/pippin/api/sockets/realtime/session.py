"""The settings of a session: the fields that clients send, how each is treated, and the resulting settings."""

from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, structs

from pippin.api.dialects.shared.body_types import read_as
from pippin.api.dialects.shared.engine_fields import Name
from pippin.api.dialects.shared.fields import Unused, check_depth, convert, invalid, unsupported
from pippin.api.dialects.shared.tools import McpTool, toolset_of
from pippin.core import parameters
from pippin.core.conversation import Tool, ToolChoice, Toolset
from pippin.core.requests import Sampling, Thinking

MOST_TOOLS: Final = 1024
MOST_TOKENS: Final = 100_000_000

Modality = Literal["text", "audio"]
Tokens = Annotated[int, Meta(ge=1, le=MOST_TOKENS)] | Literal["inf"]
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]


class Pcm(Struct, frozen=True, tag_field="type", tag="audio/pcm"):
    """The sound of both directions: 16 bits, little-endian, one channel."""

    rate: Literal[24000] = 24000


PCM: Final = Pcm()
BYTES_PER_MS: Final = 2 * PCM.rate // 1000


class Transcription(Struct, frozen=True, kw_only=True):
    model: Name | None = None
    language: Annotated[str, Meta(max_length=32)] | None = None
    prompt: Annotated[str, Meta(max_length=4096)] | None = None
    delay: Any = None
    keywords: Any = None
    languages: Any = None


class NoiseReduction(Struct, frozen=True, kw_only=True):
    type: Unused = None
    strength: Unused = None


class VoiceName(Struct, frozen=True):
    id: Name


class InputFields(Struct, kw_only=True):
    format: Pcm | None = None
    noise_reduction: NoiseReduction | UnsetType | None = UNSET
    transcription: Transcription | UnsetType | None = UNSET
    turn_detection: Any = None


class OutputFields(Struct, kw_only=True):
    format: Pcm | None = None
    voice: Name | VoiceName | UnsetType | None = UNSET
    speed: Annotated[float, Meta(ge=0.25, le=1.5)] | UnsetType = UNSET
    model: Name | UnsetType = UNSET


class AudioFields(Struct, kw_only=True):
    input: InputFields | UnsetType = UNSET
    output: OutputFields | UnsetType = UNSET


class FunctionTool(Struct, frozen=True, tag_field="type", tag="function", kw_only=True):
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,128}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedChoice(Struct, tag_field="type", tag="function", kw_only=True):
    name: str


class ReasoningFields(Struct, frozen=True, kw_only=True):
    effort: Literal["minimal", "low", "medium", "high", "xhigh"] | None = None


GivenTool = Annotated[dict[str, Any], read_as(FunctionTool, McpTool)]
GivenChoice = Literal["none", "auto", "required"] | Annotated[dict[str, Any], read_as(NamedChoice)]


class Truncation(Struct, tag_field="type", tag="retention_ratio", kw_only=True):
    retention_ratio: Unused = None
    token_limits: Unused = None


class SharedFields(Struct, kw_only=True):
    """The fields that a session and a single response share."""

    instructions: str | UnsetType = UNSET
    output_modalities: Annotated[tuple[Modality, ...], Meta(min_length=1, max_length=2)] | UnsetType = UNSET
    audio: AudioFields | UnsetType = UNSET
    max_output_tokens: Tokens | UnsetType | None = UNSET
    temperature: Annotated[float, parameters.TEMPERATURE.wire_meta] | UnsetType | None = UNSET
    tools: Annotated[list[GivenTool], Meta(max_length=MOST_TOOLS)] | UnsetType = UNSET
    tool_choice: GivenChoice | UnsetType = UNSET
    parallel_tool_calls: bool | UnsetType = UNSET
    reasoning: ReasoningFields | UnsetType | None = UNSET
    prompt: Any = None


class SessionFields(SharedFields, kw_only=True):
    """The `session` of a `session.update`. Omitted fields keep their value."""

    type: Literal["realtime"] | None = None
    model: Name | UnsetType = UNSET
    truncation: Literal["auto", "disabled"] | Truncation | UnsetType = UNSET
    include: tuple[str, ...] | UnsetType | None = UNSET
    tracing: Unused = None
    id: Unused = None
    object: Unused = None
    expires_at: Unused = None


FORMER: Final = {
    "modalities": "send `output_modalities`.",
    "max_response_output_tokens": "send `max_output_tokens`.",
    "voice": "send `audio.output.voice`.",
    "speed": "send `audio.output.speed`.",
    "input_audio_format": "send `audio.input.format`.",
    "output_audio_format": "send `audio.output.format`.",
    "input_audio_transcription": "send `audio.input.transcription`.",
    "input_audio_noise_reduction": "send `audio.input.noise_reduction`.",
    "turn_detection": "send `audio.input.turn_detection`.",
    "system_prompt": "send `instructions`.",
    "seed": "sessions have no seed; leave it out.",
    "max_streaming_seconds": "a connection lasts an hour; leave it out.",
}
"""What to send instead of the fields of OpenAI's beta and of mlx-vlm's sessions."""


def refuse_former(unknown: tuple[str, ...]) -> None:
    """Raises `ServerError` if one of the unknown fields of an event is a session's or a response's of a former form."""
    for path in unknown:
        place, _, name = path.partition(".")
        if place in ("session", "response") and name in FORMER:
            raise unsupported(path, FORMER[name])


class Settings(Struct, frozen=True, kw_only=True):
    """The settings of a session, or of one of its responses."""

    model: str
    modalities: tuple[Modality, ...]
    instructions: str = ""
    max_output_tokens: int | None = None
    temperature: float | None = None
    tools: tuple[dict[str, Any], ...] = ()
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True
    effort: str | None = None
    truncates: bool = True
    transcription: Transcription | None = None
    voice: str | None = None
    speed: float = 1.0
    speech_model: str = "default"

    @property
    def speaks(self) -> bool:
        return "audio" in self.modalities

    @property
    def sampling(self) -> Sampling:
        return Sampling(temperature=self.temperature)

    @property
    def thinking(self) -> Thinking:
        return Thinking(effort=self.effort)


def with_session(now: Settings, given: SessionFields, path: str = "session") -> Settings:
    """The settings after a `session.update`. Raises `ServerError` naming a field that can't be honoured."""
    if given.model is not UNSET and given.model not in ("", now.model):
        raise invalid(f"{path}.model", f"can't be changed: the connection was opened for {now.model!r}.")
    if given.include:
        raise unsupported(f"{path}.include", "transcriptions have no logprobs; leave it out.")
    if isinstance(given.truncation, Truncation):
        raise unsupported(
            f"{path}.truncation", 'the oldest turns go when the window is full: "auto", or "disabled".'
        )
    truncates = now.truncates if given.truncation is UNSET else given.truncation == "auto"
    return structs.replace(with_shared(now, given, path), truncates=truncates)


def with_shared(now: Settings, given: SharedFields, path: str) -> Settings:
    """The settings after the fields of a session or a response are applied. Raises `ServerError`."""
    if given.prompt is not None:
        raise unsupported(f"{path}.prompt", "templates of prompts are kept by OpenAI; send `instructions`.")
    changed: dict[str, Any] = {
        name: value
        for name in ("instructions", "temperature", "parallel_tool_calls", "tool_choice")
        if (value := getattr(given, name)) is not UNSET
    }
    if given.output_modalities is not UNSET:
        changed["modalities"] = _modalities(given.output_modalities, f"{path}.output_modalities")
    if given.max_output_tokens is not UNSET:
        most = given.max_output_tokens
        changed["max_output_tokens"] = most if isinstance(most, int) else None
    if given.tools is not UNSET:
        changed["tools"] = tuple(given.tools)
    if given.reasoning is not UNSET:
        changed["effort"] = None if given.reasoning is None else given.reasoning.effort
    if given.audio is not UNSET:
        changed |= _input(given.audio.input, f"{path}.audio.input")
        changed |= _output(given.audio.output, f"{path}.audio.output")
    settings: Settings = structs.replace(now, **changed)
    check_tools(settings, path)
    return settings


def _modalities(given: tuple[Modality, ...], path: str) -> tuple[Modality, ...]:
    if len(given) > 1:
        raise invalid(path, 'must be ["text"] or ["audio"]; speech always comes with its transcript.')
    return given


def _input(given: InputFields | UnsetType, path: str) -> dict[str, Any]:
    if given is UNSET or isinstance(given, UnsetType):
        return {}
    if given.noise_reduction not in (None, UNSET):
        raise unsupported(f"{path}.noise_reduction", "noise is not reduced here; send null.")
    if given.turn_detection is not None:
        raise unsupported(
            f"{path}.turn_detection",
            "the client tells where a turn ends: send null, and then `input_audio_buffer.commit`.",
        )
    changed: dict[str, Any] = {}
    match given.transcription:
        case Transcription() as asked:
            for name in ("delay", "keywords", "languages"):
                if getattr(asked, name) is not None:
                    raise unsupported(f"{path}.transcription.{name}", "transcription has no such setting.")
            changed["transcription"] = asked
        case None:
            changed["transcription"] = None
    return changed


def _output(given: OutputFields | UnsetType, path: str) -> dict[str, Any]:
    if isinstance(given, UnsetType):
        return {}
    changed: dict[str, Any] = {}
    if given.voice is not UNSET:
        voice = given.voice.id if isinstance(given.voice, VoiceName) else given.voice
        changed["voice"] = None if voice == "default" else voice
    if given.speed is not UNSET:
        changed["speed"] = given.speed
    if given.model is not UNSET:
        changed["speech_model"] = given.model
    return changed


def check_tools(settings: Settings, path: str) -> None:
    """Raises `ServerError` for tools that can't be offered, or a tool choice that can't be honoured."""
    tools, toolsets = tools_of(settings, path)
    choice_of(settings, tools, toolsets, path)


def tools_of(settings: Settings, path: str) -> tuple[tuple[Tool, ...], tuple[Toolset, ...]]:
    """The functions that the client runs, and the MCP toolsets that Pippin calls itself."""
    tools: dict[str, Tool] = {}
    toolsets: list[Toolset] = []
    for number, given in enumerate(settings.tools):
        place = f"{path}.tools[{number}]"
        match given.get("type", "function"):
            case "function":
                function = convert({"type": "function"} | given, FunctionTool, place)
                check_depth(function.parameters or {}, f"{place}.parameters")
                tools[function.name] = Tool(
                    function.name, function.description, function.parameters, bool(function.strict)
                )
            case "mcp":
                toolsets.append(toolset_of(convert(given, McpTool, place), place))
            case _:
                raise invalid(f"{place}.type", "must be `function` or `mcp`.")
    return tuple(tools.values()), tuple(toolsets)


def choice_of(
    settings: Settings, tools: tuple[Tool, ...], toolsets: tuple[Toolset, ...], path: str
) -> ToolChoice:
    path = f"{path}.tool_choice"
    match settings.tool_choice:
        case "none":
            return ToolChoice("none")
        case "required":
            if not tools and not toolsets:
                raise invalid(path, "can't be `required` without a tool in `tools`.")
            return ToolChoice("required")
        case dict() as given:
            if given.get("type") == "mcp":
                raise unsupported(path, "a tool of an MCP server can't be forced; force a function.")
            name = convert(given, NamedChoice, path).name
            if name not in {tool.name for tool in tools}:
                raise invalid(f"{path}.name", "must be the name of a function in `tools`.")
            return ToolChoice("required", (name,))
        case _:
            return ToolChoice()


class InputAudio(Struct, kw_only=True):
    format: Pcm = PCM
    noise_reduction: None = None
    transcription: dict[str, Any] | None
    turn_detection: None = None


class OutputAudio(Struct, kw_only=True):
    format: Pcm = PCM
    voice: str
    speed: float


class SessionAudio(Struct, kw_only=True):
    input: InputAudio
    output: OutputAudio


class Session(Struct, kw_only=True):
    """The session as shown to the client."""

    id: str
    object: Literal["realtime.session"] = "realtime.session"
    type: Literal["realtime"] = "realtime"
    audio: SessionAudio
    expires_at: int
    include: None = None
    model: str
    instructions: str
    output_modalities: tuple[Modality, ...]
    max_output_tokens: int | Literal["inf"]
    temperature: float | UnsetType = UNSET
    tools: tuple[dict[str, Any], ...]
    tool_choice: str | dict[str, Any]
    parallel_tool_calls: bool
    reasoning: ReasoningFields | UnsetType = UNSET
    truncation: Literal["auto", "disabled"]
    tracing: None = None
    prompt: None = None


def shown(settings: Settings, id: str, expires_at: int) -> Session:
    asked = settings.transcription
    transcription = (
        None
        if asked is None
        else {
            name: value
            for name in ("model", "language", "prompt")
            if (value := getattr(asked, name)) is not None
        }
    )
    return Session(
        id=id,
        audio=SessionAudio(
            input=InputAudio(transcription=transcription),
            output=OutputAudio(voice=settings.voice or "default", speed=settings.speed),
        ),
        expires_at=expires_at,
        model=settings.model,
        instructions=settings.instructions,
        output_modalities=settings.modalities,
        max_output_tokens=settings.max_output_tokens or "inf",
        temperature=UNSET if settings.temperature is None else settings.temperature,
        tools=settings.tools,
        tool_choice=settings.tool_choice,
        parallel_tool_calls=settings.parallel_tool_calls,
        reasoning=UNSET if settings.effort is None else ReasoningFields(effort=settings.effort),  # type: ignore[arg-type]
        truncation="auto" if settings.truncates else "disabled",
    )
