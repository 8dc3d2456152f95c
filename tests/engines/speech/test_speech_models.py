"""A tiny model of one of mlx-audio's families, with random weights, from disk: the same sound as by mlx-audio alone."""

import json
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from tokenizers import Tokenizer, models, pre_tokenizers

from pippin.catalog.info import read_info
from pippin.core.events import SpeechChunk, Spoken
from pippin.core.models import WorkerSpec
from pippin.core.tasks import Speak
from pippin.engines import sound, speech
from tests.engines.driving import no_progress, run

CONFIG = {
    "model_type": "soprano",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "vocab_size": 64,
    "max_position_embeddings": 256,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "sample_rate": 32000,
}


def write_model(folder: Path) -> None:
    # Seconds to import, for which every process that collects this file would wait.
    from mlx_audio.tts.models.soprano.soprano import Model, ModelConfig
    from transformers import PreTrainedTokenizerFast

    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    letters = [*"abcdefghijklmnopqrstuvwxyz .,", "[STOP]", "[TEXT]", "[START]", "<unk>"]
    words = {letter: number for number, letter in enumerate(letters)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.add_special_tokens(["[STOP]", "[TEXT]", "[START]"])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[STOP]").save_pretrained(folder)
    mx.random.seed(1)
    model = Model(ModelConfig.from_dict({**CONFIG, "model_path": "soprano"}))
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())))


@pytest.mark.long
def test_a_model_speaks_through_pippin_as_by_itself(tmp_path: Path) -> None:
    folder = tmp_path / "soprano-tiny"
    write_model(folder)
    info = read_info(folder)
    assert info.kind == "speech"
    spec = WorkerSpec(info=info, threads=1)
    preparer = speech.open_preparer(spec)
    engine = speech.open_engine(spec, preparer, no_progress)
    job = preparer.prepare("one", Speak(text="hello there.", format="pcm", seed=5, max_tokens=12))
    assert not isinstance(job, tuple)
    events = run(engine, job)["one"]
    assert isinstance(events[-1], Spoken), events
    spoken = np.frombuffer(b"".join(e.data for e in events if isinstance(e, SpeechChunk)), "<i2")

    from mlx_audio.tts.utils import load_model

    model = load_model(folder)
    model.set_dtype(mx.float32)
    mx.random.seed(5)
    [alone] = model.generate("hello there.", max_tokens=12)
    expected = (np.clip(np.array(alone.audio), -1, 1) * 32767).astype("<i2")
    assert spoken.size == expected.size > 2048
    assert np.abs(spoken.astype(int) - expected).max() <= 1
    assert np.abs(expected).max() > 0
    assert events[-1].duration == expected.size / 32000

    formats: tuple[sound.FileFormat, ...] = ("mp3", "opus", "aac", "flac", "wav")
    for name in formats:
        job = preparer.prepare(
            "one", Speak(text="hello there.", format=name, seed=5, max_tokens=12, stream=True)
        )
        assert not isinstance(job, tuple)
        encoded = b"".join(event.data for event in run(engine, job)["one"] if isinstance(event, SpeechChunk))
        assert abs(sound.decode(encoded, 32000, param="file").size - expected.size) < 4000
    engine.close()
