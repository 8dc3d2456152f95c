"""`/v1/realtime` under `--compat mlx-vlm`: the events of mlx-vlm's own server, in their order."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosedOK
from websockets.sync.client import ClientConnection, connect

from tests.api.live_server import MODEL

COMPAT = "mlx-vlm"
SCRIPT: dict[str, Any] = {
    "capabilities": {"chat": True},
    "rules": [
        {"when": {"user": "audio.wav", "system": "slow"}, "say": "word " * 2000, "gap": 0.05},
        {"when": {"user": "audio.wav", "system": "brief"}, "say": "I heard you well."},
    ],
}
SOUND = base64.b64encode(bytes(32_000)).decode()


@contextmanager
def talking(address: str, **session: Any) -> Iterator[ClientConnection]:
    with connect(address.replace("http", "ws") + "/v1/realtime") as socket:
        created = json.loads(socket.recv())["session"]
        assert created["state"] == "configuring"
        assert created["input_audio_format"] == {"type": "pcm16", "sample_rate": 16000}
        if session:
            updated = told(socket, type="session.update", session={"model": MODEL, **session})["session"]
            assert (updated["state"], updated["model"], updated["frame_samples"]) == ("ready", MODEL, 1280)
            assert updated["id"] == created["id"]
        yield socket


def told(socket: ClientConnection, **event: Any) -> dict[str, Any]:
    """What is said to one event."""
    socket.send(json.dumps(event))
    found: dict[str, Any] = json.loads(socket.recv(timeout=60))
    assert found["event_id"].startswith("event_")
    return found


def rest(socket: ClientConnection) -> list[dict[str, Any]]:
    """All events until the server ends the connection."""
    events: list[dict[str, Any]] = []
    with pytest.raises(ConnectionClosedOK):
        while True:
            events.append(json.loads(socket.recv(timeout=60)))
    return events


def test_a_question_is_heard_and_answered(address: str) -> None:
    with talking(address, system_prompt="Be brief.", seed=0) as socket:
        assert told(socket, type="session.ping")["type"] == "session.pong"
        socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": SOUND, "sample_rate": 16000}))
        assert told(socket, type="input_audio_buffer.commit")["type"] == "input_audio_buffer.committed"
        events = rest(socket)
    kinds = [event["type"] for event in events]
    assert list(dict.fromkeys(kinds)) == [
        "conversation.item.input_audio_transcription.delta",
        "response.text.delta",
        "response.audio.delta",
        "response.done",
    ]
    heard = [event for event in events if event["type"].startswith("conversation")]
    assert heard[-1]["transcript"] == "This is audio.wav. It has 32044 bytes."
    texts = [event for event in events if event["type"] == "response.text.delta"]
    assert texts[-1]["text"] == "".join(event["delta"] for event in texts) == "I heard you well."
    sound = next(event for event in events if event["type"] == "response.audio.delta")
    assert (sound["format"], sound["sample_rate"], sound["channels"]) == ("pcm16", 24000, 1)
    assert base64.b64decode(sound["delta"])
    assert {event["frame_index"] for event in events} == {13}


def test_an_answer_is_cancelled(address: str) -> None:
    with talking(address, system_prompt="Be slow.") as socket:
        socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": SOUND}))
        socket.send(json.dumps({"type": "input_audio_buffer.commit"}))
        while json.loads(socket.recv(timeout=60))["type"] != "response.text.delta":
            pass
        socket.send(json.dumps({"type": "session.cancel"}))
        assert rest(socket)[-1]["type"] == "response.cancelled"


def test_a_session_is_cancelled_before_it_was_asked(address: str) -> None:
    with talking(address, seed=1) as socket:
        assert told(socket, type="response.cancel")["type"] == "response.cancelled"
        assert rest(socket) == []


@pytest.mark.parametrize(
    ("event", "named"),
    [
        ({"type": "session.update"}, "cannot be reconfigured"),
        ({"type": "response.create"}, "response.create"),
        ({"type": "input_audio_buffer.append", "audio": "?"}, "base64"),
        ({"type": "input_audio_buffer.append", "audio": SOUND, "sample_rate": 8000}, "sample_rate"),
        (
            {"type": "input_audio_buffer.append", "audio": base64.b64encode(bytes(96_000)).decode()},
            "1.5 seconds",
        ),
        ({"type": "input_audio_buffer.commit"}, "before sound"),
        ({"type": "input_audio_buffer.append", "audio": 7}, "audio"),
        ([], "array"),
        ("no json", "str"),
    ],
)
def test_what_is_wrong_is_said_and_the_session_goes_on(address: str, event: Any, named: str) -> None:
    with talking(address, max_streaming_seconds=1.5) as socket:
        socket.send(json.dumps(event))
        refused = json.loads(socket.recv(timeout=60))
        assert refused["error"]["code"] == "invalid_request"
        assert named in refused["error"]["message"]
        assert told(socket, type="session.ping")["type"] == "session.pong"


def test_sound_before_the_session_and_a_model_that_is_not_here_are_refused(address: str) -> None:
    with talking(address) as socket:
        assert told(socket, type="input_audio_buffer.append", audio=SOUND)["type"] == "error"
        refused = told(socket, type="session.update", session={"model": "nobody-has-this"})["error"]
        assert refused["code"] == "session_initialization_failed"
        assert "nobody-has-this" in refused["message"]
        assert told(socket, type="session.update", session={})["type"] == "session.updated"
