"""The beta version of the API, which clients select with the header `OpenAI-Beta: realtime=v1`.

In the beta, a session was flat, parts and events had other names, and an item was announced once. Events are translated
on the way in and out; their meaning is the same. The types are those of `openai.types.beta.realtime`.
"""

from collections.abc import Mapping
from typing import Any, Final

from starlette.datastructures import Headers

JSON = dict[str, Any]

SUBPROTOCOL: Final = "openai-beta.realtime-v1"
"""The subprotocol with which browsers select the beta, as they can't set headers."""

FORMATS: Final[dict[str, JSON]] = {
    "pcm16": {"type": "audio/pcm", "rate": 24000},
    "g711_ulaw": {"type": "audio/pcmu"},
    "g711_alaw": {"type": "audio/pcma"},
}
OLD_FORMATS: Final = {"audio/pcm": "pcm16", "audio/pcmu": "g711_ulaw", "audio/pcma": "g711_alaw"}
PARTS: Final = {"text": "output_text", "audio": "output_audio"}
OLD_PARTS: Final = {new: old for old, new in PARTS.items()}
RENAMED: Final = (
    ("response.output_text.", "response.text."),
    ("response.output_audio.", "response.audio."),
    ("response.output_audio_transcript.", "response.audio_transcript."),
    ("conversation.item.added", "conversation.item.created"),
)
INPUT: Final = {
    "input_audio_transcription": "transcription",
    "input_audio_noise_reduction": "noise_reduction",
    "turn_detection": "turn_detection",
}
PLAIN: Final = {
    "modalities": "output_modalities",
    "max_response_output_tokens": "max_output_tokens",
}
"""Fields that are renamed but keep their place."""


def asks_for_it(headers: Headers, subprotocols: list[str]) -> bool:
    return "realtime=v1" in headers.get("openai-beta", "") or SUBPROTOCOL in subprotocols


def newer(event: JSON) -> JSON:
    """A client's event in the current form. Events that are not in the beta's form are left unchanged."""
    event = dict(event)
    match event.get("type"):
        case "session.update" if isinstance(event.get("session"), dict):
            event["session"] = _newer_settings(event["session"])
        case "transcription_session.update" if isinstance(event.get("session"), dict):
            event["type"] = "session.update"
            event["session"] = _newer_settings(event["session"]) | {"type": "transcription"}
        case "response.create" if isinstance(event.get("response"), dict):
            response = _newer_settings(event["response"])
            if isinstance(items := response.get("input"), list):
                response["input"] = [_with_parts(item, PARTS) for item in items]
            event["response"] = response
        case "conversation.item.create":
            event["item"] = _with_parts(event.get("item"), PARTS)
    return event


def older(event: JSON) -> JSON | None:
    """A server's event in the beta's form; None if the beta did not have it."""
    name = str(event["type"])
    if name == "conversation.item.done":
        return None
    for new, old in RENAMED:
        if name.startswith(new):
            name = old + name[len(new) :]
            break
    event = event | {"type": name}
    if "item" in event:
        event["item"] = _with_parts(event["item"], OLD_PARTS)
    if "response" in event:
        event["response"] = _older_response(event["response"])
    if "session" in event:
        transcribes = event["session"]["type"] == "transcription"
        event["session"] = _older_session(event["session"])
        if transcribes:
            event["type"] = f"transcription_{name}"
    return event


def _newer_settings(given: JSON) -> JSON:
    fields = dict(given)
    heard: JSON = {INPUT[name]: fields.pop(name) for name in INPUT if name in fields}
    spoken: JSON = {name: fields.pop(name) for name in ("voice", "speed") if name in fields}
    for name, place in (("input_audio_format", heard), ("output_audio_format", spoken)):
        if name in fields:
            wanted = fields.pop(name)
            place["format"] = FORMATS.get(wanted, {"type": wanted}) if isinstance(wanted, str) else wanted
    sound = {name: place for name, place in (("input", heard), ("output", spoken)) if place}
    if sound:
        fields["audio"] = sound
    for old, new in PLAIN.items():
        if old in fields:
            fields[new] = fields.pop(old)
    modalities = fields.get("output_modalities")
    if isinstance(modalities, list) and sorted(map(str, modalities)) == ["audio", "text"]:
        fields["output_modalities"] = ["audio"]
    return fields


def _older_session(session: JSON) -> JSON:
    sound = session["audio"]
    heard, spoken = sound["input"], sound.get("output")
    old = {
        "id": session["id"],
        "object": session["object"],
        "expires_at": session["expires_at"],
        "input_audio_format": OLD_FORMATS[heard["format"]["type"]],
        "input_audio_transcription": heard["transcription"],
        "turn_detection": heard["turn_detection"],
    }
    if spoken is not None:
        kept = ("model", "instructions", "tools", "tool_choice", "temperature", "tracing")
        old |= {name: session[name] for name in kept if name in session}
        old |= {"voice": spoken["voice"], "speed": spoken["speed"]}
        old["output_audio_format"] = OLD_FORMATS[spoken["format"]["type"]]
        old["modalities"] = _older_modalities(session["output_modalities"])
        old["max_response_output_tokens"] = session["max_output_tokens"]
    return old


def _older_response(response: JSON) -> JSON:
    old = {name: value for name, value in response.items() if name not in ("audio", "output_modalities")}
    old["output"] = [_with_parts(item, OLD_PARTS) for item in response["output"]]
    old["modalities"] = _older_modalities(response["output_modalities"])
    if "audio" in response:
        spoken = response["audio"]["output"]
        old |= {"voice": spoken["voice"], "output_audio_format": OLD_FORMATS[spoken["format"]["type"]]}
    return old


def _older_modalities(modalities: list[str]) -> list[str]:
    return ["audio", "text"] if "audio" in modalities else ["text"]


def _with_parts(item: Any, names: Mapping[str, str]) -> Any:
    """The item with the types of its parts renamed."""
    if not isinstance(item, dict) or not isinstance(item.get("content"), list):
        return item
    content = [
        part | {"type": names[part["type"]]}
        if isinstance(part, dict) and isinstance(part.get("type"), str) and part["type"] in names
        else part
        for part in item["content"]
    ]
    return item | {"content": content}
