"""Sound on Realtime connections: recordings are written down, answers spoken."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from tests.api.live_server import live_server
from tests.api.sockets.realtime.client import Client, Event, client_of, joined, of

SPEECH = Path(__file__).parents[3] / "data" / "speech.flac"
"""Two sentences; 6.5 seconds."""
SCRIPT: dict[str, Any] = {
    "capabilities": {"chat": True, "tools": True},
    "rules": [
        {"when": {"user": "slow"}, "say": "This is a sentence of some length. " * 40, "gap": 0.05},
        {"when": {"user": "two"}, "say": "This is the first of the sentences. And this is the second."},
        {"when": {"user": "audio.wav"}, "say": "I heard you well."},
    ],
}
HEARING: dict[str, Any] = {"rules": [{"when": {}, "say": "I heard you well."}]}


@pytest.fixture
def talk(address: str) -> Iterator[Client]:
    with client_of(address) as found:
        yield found


def speech() -> bytes:
    """The recording, as samples of 16 bits at 24 kHz."""
    with av.open(str(SPEECH)) as container:
        resampler = av.AudioResampler(format="s16", layout="mono", rate=24000)
        pieces = [
            piece.to_ndarray().reshape(-1)
            for frame in container.decode(audio=0)
            for piece in resampler.resample(frame)
        ]
    return np.concatenate(pieces).astype("<i2").tobytes()


def sound_of(events: list[Event]) -> bytes:
    return b"".join(base64.b64decode(each["delta"]) for each in of(events, "response.output_audio.delta"))


def test_what_was_said_is_written_down_for_a_model_that_cannot_hear(talk: Client) -> None:
    talk.sets(audio={"input": {"transcription": {"language": "en"}}})
    talk.speaks(speech())
    talk.send("input_audio_buffer.commit")
    events = talk.until("conversation.item.input_audio_transcription.completed")
    assert not of(events, "response.created")
    transcript = events[-1]["transcript"]
    assert transcript.startswith("This is audio.wav. It has ")
    assert int(transcript.split()[-2]) == 44 + len(speech())
    assert joined(events, "conversation.item.input_audio_transcription.delta") == transcript
    answer = talk.respond()
    assert joined(answer, "response.output_audio_transcript.delta") == "I heard you well."
    talk.send("conversation.item.retrieve", item_id=events[-1]["item_id"])
    item = talk.next()["item"]
    assert item["content"] == [{"type": "input_audio", "transcript": transcript}]


def test_a_turn_that_the_client_ends_is_heard_without_a_transcript_for_it(talk: Client) -> None:
    talk.speaks(bytes(48000))
    talk.send("input_audio_buffer.commit")
    [committed, *_] = talk.until("conversation.item.done")
    assert committed["type"] == "input_audio_buffer.committed"
    events = talk.respond()
    assert not of(events, "conversation.item.input_audio_transcription.completed")
    assert events[-1]["response"]["status"] == "completed"
    assert joined(events, "response.output_audio_transcript.delta") == "I heard you well."


def test_a_model_that_hears_is_given_the_recording_itself(tmp_path: Path) -> None:
    with live_server(tmp_path, HEARING) as address, client_of(address) as talk:
        talk.sets(output_modalities=["text"])
        talk.speaks(bytes(48000))
        talk.send("input_audio_buffer.commit")
        talk.until("conversation.item.done")
        response = talk.respond()[-1]["response"]
        assert response["status"] == "completed"
        assert response["usage"]["input_tokens"] > 3


def test_sound_may_come_in_an_item(talk: Client) -> None:
    audio = base64.b64encode(bytes(48000)).decode()
    item = {"type": "message", "role": "user", "content": [{"type": "input_audio", "audio": audio}]}
    talk.send("conversation.item.create", item=item)
    talk.until("conversation.item.done")
    assert joined(talk.respond(), "response.output_audio_transcript.delta") == "I heard you well."


def test_the_buffer_is_cleared(talk: Client) -> None:
    talk.speaks(bytes(48000))
    talk.send("input_audio_buffer.clear")
    assert talk.next()["type"] == "input_audio_buffer.cleared"
    assert talk.refused("input_audio_buffer.commit")["code"] == "input_audio_buffer_commit_empty"


def test_speech_begins_while_the_answer_is_still_written(talk: Client) -> None:
    talk.says("slow")
    talk.send("response.create")
    events = talk.until("response.output_audio.delta", "response.done")
    assert events[-1]["type"] == "response.output_audio.delta"
    talk.send("response.cancel")
    rest = talk.until("response.done")
    assert rest[-1]["response"]["status"] == "cancelled"


def test_an_answer_is_spoken_sentence_by_sentence(talk: Client) -> None:
    talk.says("two")
    events = talk.respond()
    text = "This is the first of the sentences. And this is the second."
    assert joined(events, "response.output_audio_transcript.delta") == text
    [done] = of(events, "response.output_audio_transcript.done")
    assert done["transcript"] == text
    spoken = len(sound_of(events)) / 48  # milliseconds; the scripted voice takes 10 for a character
    assert spoken == pytest.approx(10 * (len(text) - 1), abs=20)
    order = [event["type"] for event in events]
    assert order.index("response.output_audio.done") < order.index("response.output_audio_transcript.done")


def test_a_voice_that_is_not_there_fails_the_response_with_its_name(talk: Client) -> None:
    talk.says("two")
    response = talk.respond(audio={"output": {"voice": "nobody"}})[-1]["response"]
    assert response["status"] == "failed"
    assert "nobody" in response["status_details"]["error"]["message"]
    assert talk.respond(audio={"output": {"voice": "alba"}})[-1]["response"]["status"] == "completed"


def test_a_buffer_without_end_is_refused_and_then_committed(
    talk: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pippin.api.sockets.realtime.input_sound.LONGEST_MS", 2000)
    talk.speaks(bytes(48 * 2000))
    assert talk.refused("input_audio_buffer.append", audio=base64.b64encode(bytes(96)).decode())["code"] == (
        "input_audio_buffer_full"
    )
    talk.send("input_audio_buffer.commit")
    assert talk.next()["type"] == "input_audio_buffer.committed"
