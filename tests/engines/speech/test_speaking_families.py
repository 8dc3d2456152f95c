"""Tiny models of families of mlx-audio that speak, from disk, without a network: the samples of mlx-audio alone."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub.constants
import mlx.core as mx
import numpy as np
import pytest

from pippin.catalog.info import read_info
from pippin.core.errors import ServerError
from pippin.core.events import Event, Failed, SpeechChunk, Spoken, Voices
from pippin.core.models import WorkerSpec
from pippin.core.tasks import ListVoices, Speak
from pippin.engines import speech
from pippin.engines.speech.speaking import load_speaker
from tests.engines.driving import no_progress, run
from tests.engines.speech.tiny_speaking import FAMILIES, write_speaking_model

TEXT = "hello there."
FIELDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "orpheus": (
        {"voice": "tara", "max_tokens": 28, "temperature": 0.4, "top_k": 40, "repetition_penalty": 1.0},
        {"voice": "tara", "max_tokens": 28, "temperature": 0.4, "top_k": 40, "repetition_penalty": 1.0},
    ),
    "qwen3_tts": (
        {"voice": "Ryan", "instructions": "whisper", "language": "english", "max_tokens": 12},
        {"voice": "ryan", "instruct": "whisper", "lang_code": "english", "max_tokens": 12},
    ),
    "dia": ({"max_tokens": 40}, {"max_tokens": 40}),
    "voxcpm": ({"max_tokens": 5}, {"max_tokens": 5}),
    "kokoro": (
        {"voice": "ef_dora, AF_heart", "language": "es", "speed": 1.5},
        {"voice": "ef_dora,af_heart", "lang_code": "es", "speed": 1.5},
    ),
    "pocket_tts": ({"voice": "Marius", "temperature": 0.5}, {"voice": "marius", "temperature": 0.5}),
}
"""For each family the fields of a request, and the arguments of `generate` that mean the same."""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the Hub that can't be reached."""
    folder = tmp_path / "hub"
    folder.mkdir()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return folder


class Letters:
    """In place of eSpeak, whose packages are of the extra `kokoro`: letters for phonemes."""

    def __init__(self, language: str) -> None:
        assert language == "es"

    def __call__(self, text: str) -> tuple[str, None]:
        return text, None


@pytest.fixture
def phonemes(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = SimpleNamespace(EspeakG2P=Letters)
    monkeypatch.setattr("mlx_audio.tts.models.kokoro.pipeline._get_misaki_espeak", lambda: reader)


def speak(preparer: Any, engine: Any, **fields: Any) -> list[Event]:
    job = preparer.prepare("one", Speak(**{"text": TEXT, "format": "pcm", "seed": 5, **fields}))
    assert not isinstance(job, tuple)
    return run(engine, job)["one"]


def alone(folder: Path, arguments: dict[str, Any]) -> np.ndarray[Any, Any]:
    model = load_speaker(read_info(folder))
    mx.random.seed(5)
    pieces = [np.array(piece.audio).reshape(-1) for piece in model.generate(TEXT, **arguments)]
    return (np.clip(np.concatenate(pieces), -1, 1) * 32767).astype("<i2")


@pytest.mark.long
@pytest.mark.usefixtures("phonemes")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_speaks_through_pippin_as_by_itself(family: str, tmp_path: Path, hub: Path) -> None:
    folder = write_speaking_model(family, tmp_path / f"{family}-tiny", hub)
    info = read_info(folder)
    assert info.kind == "speech"
    spec = WorkerSpec(info=info, threads=1)
    preparer = speech.open_preparer(spec)
    engine = speech.open_engine(spec, preparer, no_progress)
    fields, arguments = FIELDS[family]
    events = speak(preparer, engine, **fields)
    assert isinstance(events[-1], Spoken), events
    spoken = np.frombuffer(b"".join(e.data for e in events if isinstance(e, SpeechChunk)), "<i2")
    expected = alone(folder, arguments)
    assert spoken.size == expected.size > 10
    assert np.abs(spoken.astype(int) - expected).max() <= 2
    assert np.abs(expected).max() > 50
    for bad in ({"voice": "/etc/passwd"}, {"voice": "x.safetensors"}):
        with pytest.raises(ServerError, match="'voice' is"):
            speak(preparer, engine, **bad)
    for text in (".", "?!...", "\U0001f600", "word " * 60):
        [*_, last] = speak(preparer, engine, **{**fields, "text": text})
        if isinstance(last, Failed):
            assert last.error.kind in ("invalid_request", "unsupported"), (text, last)
    engine.close()


@pytest.mark.long
def test_voices_are_those_that_a_family_has(tmp_path: Path, hub: Path) -> None:
    for family, names in (("qwen3_tts", ("ryan", "vivian")), ("pocket_tts", ("alba", "marius"))):
        info = read_info(write_speaking_model(family, tmp_path / f"{family}-tiny", hub))
        preparer = speech.open_preparer(WorkerSpec(info=info, threads=1))
        assert preparer.prepare("a", ListVoices()) == (Voices(names),)


def test_a_codec_that_is_not_here_is_named_when_the_model_is_loaded(tmp_path: Path, hub: Path) -> None:
    (tmp_path / "dia-tiny").mkdir()
    folder = tmp_path / "dia-tiny"
    (folder / "config.json").write_text('{"data": {"delay_pattern": [0, 8]}, "model": {}}')
    mx.save_safetensors(str(folder / "model.safetensors"), {"a": mx.zeros(1)})
    info = read_info(folder)
    assert info.kind == "speech"
    spec = WorkerSpec(info=info, threads=1)
    with pytest.raises(ServerError, match="needs mlx-community/descript-audio-codec-44khz") as caught:
        speech.open_engine(spec, speech.open_preparer(spec), no_progress)
    assert caught.value.report.kind == "load_failed"
    assert f"pippin pull {folder}" in caught.value.report.message
