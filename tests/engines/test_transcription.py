"""Whisper base hears the words of synthesised speech, and other implementations hear the same."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_audio.stt.models.whisper.whisper import Model, STTOutput

from pippin.catalog.info import read_info
from pippin.core.errors import ServerError
from pippin.core.events import Event, Progress, Segment, Transcribed
from pippin.core.models import WorkerSpec
from pippin.core.tasks import Transcribe
from pippin.engines import sound, transcription
from pippin.engines.blocking import BlockingEngine
from pippin.engines.transcription import RATE, TranscriptionPreparer, split_at_silence
from tests.engines.driving import no_progress, run

ROOT = Path(__file__).parent.parent.parent
SPEECH = (ROOT / "tests" / "data" / "speech.flac").read_bytes()
"""espeak-ng says: The quick brown fox jumps over the lazy dog. Pippin serves many models on one machine."""

HEARD = "The quick brown fox jump over the lazy dog. Bippin' serves many models on one machine."
"""What faster-whisper 1.2.1 hears in it with the same weights, greedy, in float32."""

ENDS = [0.14, 0.46, 0.8, 1.26, 1.52, 2.04, 2.22, 2.5, 3.0, 3.84, 4.18, 4.56, 4.96, 5.2, 5.42, 5.86]
"""When its words end, by OpenAI's own code (20250625) with the same weights."""

Loaded = tuple[TranscriptionPreparer, BlockingEngine[Any]]


@pytest.fixture(scope="module")
def loaded(whisper_base: Path) -> Iterator[Loaded]:
    spec = WorkerSpec(info=read_info(whisper_base), threads=1)
    preparer = transcription.open_preparer(spec)
    engine = transcription.open_engine(spec, preparer, no_progress)
    yield preparer, engine
    engine.close()


def hear(loaded: Loaded, **fields: Any) -> list[Event]:
    preparer, engine = loaded
    job = preparer.prepare("one", Transcribe(audio=SPEECH, **fields))
    assert not isinstance(job, tuple)
    assert job.accepted.prompt_tokens == 65
    return run(engine, job)["one"]


@pytest.mark.model
def test_speech_is_heard_as_another_implementation_hears_it(loaded: Loaded) -> None:
    events = hear(loaded, words=True)
    done = events[-1]
    assert isinstance(done, Transcribed)
    assert (done.text, done.language, done.language_name) == (HEARD, "en", "english")
    assert abs(done.duration - 6.487) < 0.01
    segments = [event for event in events if isinstance(event, Segment)]
    assert "".join(segment.text for segment in segments).strip() == HEARD
    words = [word for segment in segments for word in segment.words]
    assert [word.text.strip() for word in words] == HEARD.split()
    assert [word.end for word in words] == pytest.approx(ENDS, abs=0.021)
    starts = [0.0, *ENDS[:8], 3.38, 4.04, *ENDS[10:-1]]
    assert [word.start for word in words] == pytest.approx(starts, abs=0.021)
    assert any(isinstance(event, Progress) for event in events)


@pytest.mark.model
def test_a_language_that_the_model_does_not_know_is_refused(loaded: Loaded) -> None:
    [failed] = hear(loaded, language="tlh")
    assert "'language' is 'tlh'; this model knows" in str(failed)


@pytest.mark.model
@pytest.mark.parametrize(
    ("language", "given"),
    [
        *((name, "en") for name in ("English", "en", "en-GB", "en_US")),
        *((name, None) for name in (None, "auto", "Auto")),
    ],
)
def test_a_language_may_be_a_name_or_detected(
    loaded: Loaded, language: str | None, given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Whisper detects by itself: `test_speech_is_heard_as_another_implementation_hears_it`."""
    asked: list[str | None] = []

    def generate(*_: Any, language: str | None, **others: Any) -> STTOutput:
        asked.append(language)
        return STTOutput(text="Hello.", segments=[], language="de")

    monkeypatch.setattr(Model, "generate", generate)
    done = hear(loaded, language=language)[-1]
    assert isinstance(done, Transcribed)
    assert (asked, done.language) == ([given], given or "de")
    assert done.language_name == {"en": "english", "de": "german"}[done.language]


@pytest.mark.model
def test_a_translation_is_english(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = STTOutput(text="Hello.", segments=[], language="de")
    monkeypatch.setattr(Model, "generate", lambda *_, **__: heard)
    done = hear(loaded, language="de", translate=True)[-1]
    assert isinstance(done, Transcribed)
    assert (done.language, done.language_name) == ("en", "english")


@pytest.mark.model
def test_a_model_of_english_alone_refuses_other_languages(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Model, "is_multilingual", False)
    [failed] = hear(loaded, language="de")
    assert "'language' is 'de'; this model knows en." in str(failed)


@pytest.mark.model
@pytest.mark.parametrize("mark", ["<|endoftext|>", "<|startoftranscript|>", "<|0.00|>"])
def test_a_prompt_that_spells_the_models_own_marks_is_refused(loaded: Loaded, mark: str) -> None:
    [failed] = hear(loaded, prompt=f"Names: {mark} Pippin")
    assert f"'prompt' spells {mark}, a mark of the model's own" in str(failed)


@pytest.mark.model
def test_a_segment_tells_where_its_window_begins(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"text": "Hello.", "start": 1.5, "end": 2.0, "seek": 120}
    monkeypatch.setattr(Model, "generate", lambda *_, **__: STTOutput(text="Hello.", segments=[found]))
    segment = hear(loaded)[0]
    assert isinstance(segment, Segment)
    assert (segment.start, segment.seek) == (1.5, 120)


@pytest.mark.long
@pytest.mark.model
@pytest.mark.parametrize("language", ["English", "auto"])
def test_speech_in_a_named_language_is_heard_as_where_it_is_detected(loaded: Loaded, language: str) -> None:
    done = hear(loaded, language=language)[-1]
    assert isinstance(done, Transcribed)
    assert (done.text, done.language) == (HEARD, "en")


@pytest.mark.model
def test_what_is_not_audio_is_refused_before_the_model(loaded: Loaded) -> None:
    with pytest.raises(ServerError, match="no sound that can be decoded"):
        loaded[0].prepare("a", Transcribe(audio=b"hello" * 100))


@pytest.mark.model
def test_a_cancelled_transcription_stops_and_the_next_one_runs(loaded: Loaded) -> None:
    preparer, engine = loaded
    job = preparer.prepare("gone", Transcribe(audio=SPEECH))
    assert not isinstance(job, tuple)
    engine.submit(job)
    engine.cancel("gone")
    assert engine.step() == []
    assert not engine.busy


@pytest.mark.long
@pytest.mark.model
@pytest.mark.timeout(1500)
def test_a_stream_longer_than_a_window_is_heard_to_its_end(loaded: Loaded) -> None:
    preparer, engine = loaded
    once = np.concatenate([sound.decode(SPEECH, RATE, param="x"), np.zeros(RATE, np.float32)])
    encoder = sound.SpeechEncoder("flac", RATE)
    data = encoder.feed(np.tile(once, 6)) + encoder.finish()
    job = preparer.prepare("one", Transcribe(audio=data, stream=True, language="en"))
    assert not isinstance(job, tuple)
    events = run(engine, job)["one"]
    done = events[-1]
    assert isinstance(done, Transcribed)
    assert done.duration == pytest.approx(6 * once.size / RATE, abs=0.1)
    assert done.duration > 40
    assert done.text.lower().count("lazy dog") == done.text.lower().count("one machine") == 6
    segments = [event for event in events if isinstance(event, Segment)]
    assert [segment.id for segment in segments] == list(range(len(segments)))
    assert " ".join(segment.text.strip() for segment in segments) == done.text
    times = [time for segment in segments for time in (segment.start, segment.end)]
    assert times == sorted(times)
    assert 35 < times[-1] <= done.duration + 0.5
    first = next(place for place, event in enumerate(events) if isinstance(event, Segment))
    assert any(isinstance(event, Progress) for event in events[first:])  # it comes while the rest is heard


def test_a_stream_is_cut_where_it_is_quiet() -> None:
    noise = np.random.default_rng(1).normal(size=75 * RATE).astype(np.float32)
    noise[25 * RATE : 26 * RATE] = 0
    noise[50 * RATE : 51 * RATE] = 0
    pieces = split_at_silence(noise)
    assert [piece.size / RATE for piece in pieces[:2]] == pytest.approx([25.5, 25], abs=0.6)
    assert sum(piece.size for piece in pieces) == noise.size
    assert all(piece.size <= 30 * RATE for piece in pieces)
    assert np.array_equal(np.concatenate(pieces), noise)


@pytest.mark.long
@pytest.mark.model
def test_a_folder_of_weights_alone_hears_the_same(whisper_base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "whisper-base-mlx"  # as mlx-community has them: config.json and weights.npz
    folder.mkdir()
    config = json.loads((whisper_base / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps(config))
    weights = mx.load(str(whisper_base / "model.safetensors"))
    assert isinstance(weights, dict)
    mx.savez(str(folder / "weights.npz"), **weights)
    info = read_info(folder)
    assert (info.kind, info.size_bytes > 0) == ("transcription", True)
    spec = WorkerSpec(info=info, threads=1)
    preparer = transcription.open_preparer(spec)
    engine = transcription.open_engine(spec, preparer, no_progress)
    done = hear((preparer, engine))[-1]
    engine.close()
    assert isinstance(done, Transcribed)
    assert (done.text, done.language) == (HEARD, "en")
