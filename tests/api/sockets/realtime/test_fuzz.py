"""Random and damaged events on Realtime connections: each costs an error at most, never the connection."""

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pippin.api.sockets.realtime.events import CONTRACTS
from tests.api.sockets.realtime.client import Client, client_of

WORDS = (
    *("type", "event_id", "session", "item", "item_id", "content_index", "audio_end_ms", "audio", "response"),
    *("response_id", "previous_item_id", "instructions", "output_modalities", "input", "output", "format"),
    *("transcription", "turn_detection", "threshold", "noise_reduction", "voice", "speed", "model", "tools"),
    *("tool_choice", "max_output_tokens", "temperature", "content", "role", "text", "transcript", "call_id"),
    *("modalities", "input_audio_format", "input_audio_transcription", "max_response_output_tokens"),
    *("name", "arguments", "image_url", "conversation", "metadata", "id", "rate", "truncation", "prompt"),
)
TYPES = (
    *CONTRACTS,
    *("realtime", "transcription", "message", "function_call", "function_call_output", "item_reference"),
    *(
        "input_text",
        "input_audio",
        "input_image",
        "output_text",
        "output_audio",
        "server_vad",
        "semantic_vad",
    ),
    *("audio/pcm", "audio/pcmu", "audio/pcma", "function", "mcp", "text", "audio", "user", "system", "root"),
    *("assistant", "auto", "none", "required", "inf", "", "AAAA", "data:image/png;base64,AAAA", "\ud7ff\x00"),
)
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=True),
    st.sampled_from(TYPES),
    st.text(max_size=12),
)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=6),
    max_leaves=16,
)
SCRIPT: dict[str, Any] = {"capabilities": {"chat": True, "tools": True}}
SEEDS: tuple[dict[str, Any], ...] = (
    {
        "type": "session.update",
        "session": {
            "type": "realtime",
            "output_modalities": ["text"],
            "audio": {"input": {"format": {"type": "audio/pcm"}, "transcription": {"language": "en"}}},
            "tools": [{"type": "function", "name": "f", "parameters": {}}],
            "tool_choice": {"type": "function", "name": "f"},
            "max_output_tokens": 8,
        },
    },
    {
        "type": "conversation.item.create",
        "item": {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
    },
    {
        "type": "conversation.item.create",
        "item": {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_audio", "audio": "AAAA" * 99}],
        },
    },
    {"type": "conversation.item.create", "item": {"type": "function_call", "name": "f", "arguments": "{}"}},
    {"type": "input_audio_buffer.append", "audio": "AAAA" * 4000},
    {"type": "input_audio_buffer.commit"},
    {"type": "response.create", "response": {"conversation": "auto", "max_output_tokens": 4}},
    {"type": "response.create"},
    {"type": "response.cancel"},
)


@st.composite
def damaged(draw: st.DrawFn) -> dict[str, Any]:
    """A right event with some of its values put wrong."""
    event: dict[str, Any] = json.loads(json.dumps(draw(st.sampled_from(SEEDS))))
    for _ in range(draw(st.integers(0, 3))):
        place: Any = event
        while isinstance(place, dict) and place:
            key = draw(st.sampled_from(sorted(place)))
            if not isinstance(place[key], dict) or draw(st.booleans()):
                place[key] = draw(values)
                break
            place = place[key]
    return event


events = st.one_of(
    damaged(),
    st.builds(
        lambda name, fields: {**fields, "type": name},
        st.sampled_from(tuple(CONTRACTS)),
        st.dictionaries(st.sampled_from(WORDS), values, max_size=4),
    ),
)


def goes_on(talk: Client) -> None:
    """The connection still answers, after whatever it was asked before."""
    talk.send("conversation.item.retrieve", item_id="nobody", event_id="the end")
    while True:
        event = talk.next()
        assert event["type"] != "error" or event["error"]["code"] != "internal_error", event
        if event["type"] == "error" and event["error"]["event_id"] == "the end":
            return


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(st.lists(events, min_size=1, max_size=12))
def test_no_event_ends_the_connection(address: str, sent: list[dict[str, Any]]) -> None:
    with client_of(address) as talk:
        for event in sent:
            talk.socket.send(json.dumps(event))
        goes_on(talk)


@settings(derandomize=True)
@given(st.sampled_from(SEEDS), st.data())
def test_no_damaged_text_ends_the_connection(address: str, seed: dict[str, Any], data: st.DataObject) -> None:
    letters = list(json.dumps(seed))
    for _ in range(data.draw(st.integers(1, 6))):
        letters[data.draw(st.integers(0, len(letters) - 1))] = data.draw(st.characters(codec="utf-8"))
    with client_of(address) as talk:
        talk.socket.send("".join(letters))
        goes_on(talk)
