"""Whisper hears and decodes as transformers does, from checkpoints that it saves: see tests/oracles/sound_oracle.py."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec
import numpy as np
import pytest

from pippin.core.errors import ServerError
from pippin.core.events import Segment
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.core.tasks import Transcribe
from pippin.engines.encoding import cast_weights
from pippin.engines.transcription import RATE, prepare_whisper, read_model, transcribe

# These folders have no tokenizer.
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:Could not load WhisperProcessor"),
]
ORACLE = Path(__file__).parents[2] / "oracles" / "sound_oracle.py"
CLOSE = 1e-4  # of the spread of what is expected


@pytest.fixture(scope="module")
def written(oracle_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(os.environ.get("PIPPIN_SOUND_FOLDER", tmp_path_factory.mktemp("sound")))
    if not any(folder.iterdir()):
        subprocess.run([oracle_python, ORACLE, folder], check=True, timeout=300)
    return folder


@pytest.mark.parametrize("name", ["whisper", "whisper-large", "whisper-english", "whisper-deep"])
def test_features_and_logits_are_those_of_transformers(written: Path, name: str) -> None:
    from mlx_audio.stt.models.whisper.audio import N_FRAMES, N_SAMPLES, log_mel_spectrogram, pad_or_trim

    oracle = np.load(written / name / "oracle.npz")
    model = read_model(written / name, name)
    info = ModelInfo(id=name, kind="transcription")
    cast_weights(model, WorkerSpec(info=info, threads=1, options={"dtype": "float32"}))
    found = log_mel_spectrogram(mx.array(oracle["samples"]), n_mels=model.dims.n_mels, padding=N_SAMPLES)
    features = pad_or_trim(found, N_FRAMES, axis=-2)
    # Logarithms of what is almost silent differ more than the rounding of float32.
    assert np.abs(np.array(features) - oracle["features"]).max() < 3e-4
    heard = model.embed_audio(mx.array(oracle["features"])[None])
    logits = np.array(model.logits(mx.array(oracle["tokens"])[None], heard)[0])
    assert np.abs(logits - oracle["logits"]).max() < CLOSE * oracle["logits"].std()


@pytest.mark.parametrize(
    ("name", "reason"), [("whisper-relu", "activation_function"), ("whisper-scaled", "scale_embedding")]
)
def test_what_changes_the_answer_and_is_not_read_is_refused_by_name(
    written: Path, name: str, reason: str
) -> None:
    with pytest.raises(ServerError, match=reason):
        read_model(written / name, name)


class Heard(list[Any]):
    """The events of a call."""

    emit = list.append

    def check(self) -> None:
        pass


@pytest.fixture(scope="module")
def hearing(written: Path) -> Any:
    model = read_model(written / "heard", "heard")
    info = ModelInfo(id="heard", kind="transcription", path=str(written / "heard"))
    cast_weights(model, WorkerSpec(info=info, threads=1, options={"dtype": "float32"}))
    return model


NAMES = (
    "plain language translated named forced few-languages much-suppressed begin-suppressed early "
    "any-time penalised forbidden prompted continued silent never-silent repetitive unlikely likely-enough"
).split()


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_of_several_windows_is_heard_as_in_transformers(
    name: str, written: Path, hearing: Any
) -> None:
    folder = written / "heard"
    oracle = json.loads((folder / f"{name}.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(oracle["said"]))
    prepare_whisper(hearing, "heard", folder)
    temperatures = oracle["temperatures"]
    own = {**hearing.settings.arguments, "sample_len": oracle["most_tokens"], "temperature": temperatures}
    hearing.settings = msgspec.structs.replace(hearing.settings, arguments=own)
    events, asked = Heard(), oracle["asked"]
    task = Transcribe(
        audio=b"",
        language=asked.get("language"),
        translate=asked.get("task") == "translate",
        prompt=oracle["prompt"],
    )
    transcribe(task, np.load(folder / "samples.npy"), RATE, hearing, events)  # type: ignore[arg-type]  # the part of a call that is used
    found = [each for each in events if isinstance(each, Segment)]
    expected = oracle["segments"]
    assert bool(expected) == (name != "silent")
    assert [(round(each.start, 2), round(each.end, 2)) for each in found] == [
        (round(each["start"], 2), round(each["end"], 2)) for each in expected
    ]
    assert [list(each.tokens) for each in found] == [tokens_of(each) for each in expected]
    if temperatures:
        # Each window is tried from the lowest temperature on.
        ends = [place for place, next_ in enumerate((*oracle["tried"][1:], 0.0)) if next_ == 0.0]
        accepted = [oracle["tried"][place] for place in ends]
        assert list({each.seek: each.temperature for each in found}.values()) == accepted


def tokens_of(segment: dict[str, Any]) -> list[int]:
    """OpenAI's code, and mlx-audio's, leave out what has no length, and the time that begins the next segment."""
    tokens: list[int] = segment["tokens"]
    if segment["start"] == segment["end"]:
        return []
    return tokens[:-1] if len(tokens) > 1 and min(tokens[-2:]) >= 50364 else tokens
