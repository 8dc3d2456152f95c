"""Sound from clients is decoded within limits or refused, and speech is encoded so that it can be decoded."""

import io
import math
import random
import struct
import wave
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pippin.core.errors import ServerError
from pippin.engines import sound

SPEECH = Path(__file__).parent.parent / "data" / "speech.flac"


def tone(seconds: float, rate: int = 16000) -> sound.Samples:
    return (0.5 * np.sin(2 * np.pi * 440 * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


def wav(samples: sound.Samples, rate: int = 16000, channels: int = 1) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(channels)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes((np.repeat(samples, channels) * 32767).astype("<i2").tobytes())
    return file.getvalue()


def encoded(format: str, codec: str, samples: sound.Samples, rate: int = 48000) -> bytes:
    """A file as other programs write it."""
    file = io.BytesIO()
    with av.open(file, "w", format=format) as container:
        stream = container.add_stream(codec, rate=rate)
        assert isinstance(stream, av.AudioStream)
        stream.layout = "mono"
        resampler = av.AudioResampler(format=stream.format, layout="mono", rate=rate)
        frame = av.AudioFrame.from_ndarray(samples.reshape(1, -1), format="flt", layout="mono")
        frame.sample_rate = 16000
        for piece in [*resampler.resample(frame), *resampler.resample(None)]:
            container.mux(stream.encode(piece))
        container.mux(stream.encode(None))
    return file.getvalue()


def status_of(data: bytes) -> int:
    """As a client would see it."""
    try:
        sound.decode(data, 16000, param="file")
    except ServerError as error:
        return error.report.status
    return 200


@pytest.mark.parametrize(
    ("format", "codec"),
    [
        ("wav", "pcm_s16le"),
        ("mp3", "libmp3lame"),
        ("flac", "flac"),
        ("ogg", "libopus"),
        ("ipod", "aac"),
        ("mp4", "aac"),
        ("adts", "aac"),
        ("webm", "libopus"),
        ("mpeg", "mp2"),
        ("mpegts", "aac"),
        ("avi", "libmp3lame"),
        ("flv", "aac"),
        ("asf", "libmp3lame"),
    ],
)
def test_common_files_are_decoded_to_mono_at_the_rate_asked_for(format: str, codec: str) -> None:
    found = sound.decode(encoded(format, codec, tone(1.0)), 16000, param="file")
    assert abs(found.size - 16000) < 2500
    spectrum = np.abs(np.fft.rfft(found[2000:10000]))
    assert abs(int(spectrum.argmax()) * 16000 / 8000 - 440) < 5


@pytest.mark.parametrize("channels", [2, 6, 8, 17, 64])
def test_the_mean_of_all_channels_is_heard(channels: int) -> None:
    """Neither louder than one of them nor, in more channels than FFmpeg can mix, not at all."""
    found = sound.decode(wav(tone(0.5, 44100), 44100, channels), 16000, param="file")
    alone = sound.decode(wav(tone(0.5, 44100), 44100), 16000, param="file")
    assert np.allclose(found, alone, atol=1e-6)


def floats(*samples: float) -> bytes:
    """A wav file of samples of 32 bits, repeated to half a second."""
    data = np.tile(np.array(samples, "<f4"), 8000 // len(samples)).tobytes()
    described = struct.pack("<HHIIHH", 3, 1, 16000, 64000, 4, 32)
    body = b"WAVEfmt " + struct.pack("<I", 16) + described + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


@pytest.mark.parametrize(
    "data",
    [
        floats(0.1, math.nan),
        floats(math.inf),
        floats(3e38, -3e38),
        b"",
        b"RIFF",
        b"not a sound at all" * 50,
        b"\x89PNG\r\n\x1a\n" + bytes(200),
        b"ID3\x04\x00\x00\x00\x00\x00\x00",
        b"OggS" + b"\xff" * 300,
        wav(tone(0.0)),
        wav(tone(0.1))[:40],
        b"#EXTM3U\nhttp://127.0.0.1/secret\n",
        b"ffconcat version 1.0\nfile /etc/passwd\n",
    ],
)
def test_what_is_no_sound_is_refused(data: bytes) -> None:
    with pytest.raises(ServerError) as caught:
        sound.decode(data, 16000, param="file")
    assert (caught.value.report.status, caught.value.report.param) == (400, "file")


def test_a_file_of_floats_is_heard_as_it_is() -> None:
    assert np.abs(sound.decode(floats(0.5, 0.25), 16000, param="file")).max() == pytest.approx(0.5)


def seconds(data: bytes) -> float:
    return sound.decode(data, 16000, param="file").size / 16000


def test_of_a_cut_file_what_is_there_is_heard() -> None:
    whole = SPEECH.read_bytes()
    assert {status_of(whole[:end]) for end in (10, 100, 1000)} == {400}
    assert seconds(whole[: len(whole) // 2]) == pytest.approx(seconds(whole) / 2, abs=1)


def test_a_file_whose_index_is_cut_off_is_refused_in_words_that_say_so() -> None:
    whole = encoded("ipod", "aac", tone(1.0))
    with pytest.raises(ServerError, match="without its end"):
        sound.decode(whole[: len(whole) // 2], 16000, param="file")


FILES = (
    *(("wav", "pcm_s16le"), ("mp3", "libmp3lame"), ("adts", "aac"), ("ipod", "aac")),
    *(("flac", "flac"), ("ogg", "libopus"), ("webm", "libopus")),
)


@pytest.mark.parametrize(("format", "codec"), FILES)
def test_what_is_not_damaged_is_heard(format: str, codec: str) -> None:
    whole, chance = encoded(format, codec, tone(5.0)), random.Random(1)
    for size in (4, 50, 600):
        place = len(whole) * 6 // 10
        damaged = whole[:place] + chance.randbytes(size) + whole[place + size :]
        assert 3 < seconds(damaged) < 5.2  # a container may lose its whole cluster
    assert seconds(whole + chance.randbytes(1000)) == pytest.approx(5, abs=0.1)
    if format != "ipod":  # its table of contents stands at its end
        assert seconds(whole[: len(whole) * 9 // 10]) > 3


def test_joined_files_are_one_sound_though_their_rates_differ() -> None:
    first, second = encoded("mp3", "libmp3lame", tone(1.0)), encoded("mp3", "libmp3lame", tone(2.0), 22050)
    assert seconds(first + first) == pytest.approx(2, abs=0.2)
    assert seconds(first + second) == pytest.approx(3, abs=0.3)


def test_a_playlist_opens_no_other_file(tmp_path: Path) -> None:
    """FFmpeg would follow it to any file or address."""
    (tmp_path / "secret.flac").write_bytes(SPEECH.read_bytes())
    target = tmp_path / "secret.flac"
    playlists = (
        f"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nfile://{target}\n#EXT-X-ENDLIST\n",
        f"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\n{target}\n#EXT-X-ENDLIST\n",
        f"ffconcat version 1.0\nfile '{target}'\n",
    )
    assert [status_of(playlist.encode()) for playlist in playlists] == [400, 400, 400]


def test_tags_that_are_not_utf8_are_left_alone() -> None:
    plain = wav(tone(0.2))
    tags = b"INFOINAM" + (4).to_bytes(4, "little") + b"a\xff\xfeb"
    tagged = plain[:36] + b"LIST" + len(tags).to_bytes(4, "little") + tags + plain[36:]
    assert sound.decode(tagged, 16000, param="file").size == sound.decode(plain, 16000, param="file").size


def test_a_sound_that_lasts_too_long_is_refused_before_it_is_all_decoded() -> None:
    with pytest.raises(ServerError, match="longer than 2 seconds") as caught:
        sound.decode(wav(tone(5.0)), 16000, param="file", longest=2.0)
    assert caught.value.report.kind == "too_large"


def test_a_header_that_claims_days_is_not_believed() -> None:
    data = bytearray(wav(tone(0.2)))
    data[40:44] = (0x7FFFFFF0).to_bytes(4, "little")
    assert sound.decode(bytes(data), 16000, param="file").size <= 3200


@given(st.data())
def test_damaged_files_never_crash(data: st.DataObject) -> None:
    whole = bytearray(SPEECH.read_bytes()[:8000])
    for _ in range(data.draw(st.integers(1, 8))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    assert status_of(bytes(whole)) in (200, 400, 413)


@pytest.mark.parametrize("format", ["mp3", "opus", "aac", "flac", "wav"])
@pytest.mark.parametrize("rate", [24000, 25000, 192000])  # most formats lack the last two
def test_speech_that_comes_in_pieces_is_one_file(format: sound.FileFormat, rate: int) -> None:
    encoder = sound.SpeechEncoder(format, rate)
    spoken = tone(1.0, rate)
    fed = [encoder.feed(piece) for piece in np.array_split(spoken, 3)]
    assert all(fed[1:]) is (format != "wav"), "a third of a second is sent before the next one is spoken"
    found = sound.decode(b"".join(fed) + encoder.finish(), 24000, param="file")
    assert abs(found.size - 24000) < 4000
    middle = found[6000:18000]
    assert abs(int(np.abs(np.fft.rfft(middle)).argmax()) * 24000 / 12000 - 440) < 5


def test_pcm_is_the_samples_themselves() -> None:
    encoder = sound.SpeechEncoder("pcm", 24000)
    data = encoder.feed(np.array([0.0, 1.0, -1.0, 2.0], dtype=np.float32)) + encoder.finish()
    assert np.frombuffer(data, "<i2").tolist() == [0, 32767, -32767, 32767]
