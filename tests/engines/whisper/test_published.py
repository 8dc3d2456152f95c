"""Whisper hears and decodes as transformers does, from checkpoints that it saves: see tests/oracles/sound_oracle.py."""

import os
import subprocess
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.engines.encoding import cast_weights
from pippin.engines.transcription import read_model

# These folders have no tokenizer.
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore:Could not load WhisperProcessor")]
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
