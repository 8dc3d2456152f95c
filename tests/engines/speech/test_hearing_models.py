"""Tiny models of several families of mlx-audio, with random weights, from disk: the same text as by mlx-audio alone."""

import importlib
import json
import wave
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, List  # noqa: UP035

import mlx.core as mx
import mlx.nn as nn
import mlx_audio
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_audio.stt.utils import load_model

from pippin.core.errors import ServerError
from pippin.core.events import Failed, Segment, Transcribed
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.core.tasks import Transcribe
from pippin.engines import transcription
from pippin.engines.base import NeedsWeightsError
from pippin.engines.transcription import TranscriptionPreparer, read_model, transcribe
from tests.engines.driving import no_progress
from tests.engines.speech.hearing import Loaded, hear, opened
from tests.engines.speech.recordings import wav

LETTERS = ["▁", *"abcdefghijklmnopqrstuvwxyz", "."]
CONFORMER = {
    "feat_in": 80,
    "n_layers": 2,
    "d_model": 32,
    "n_heads": 2,
    "ff_expansion_factor": 2,
    "subsampling_factor": 8,
    "subsampling_conv_channels": 8,
    "conv_kernel_size": 9,
    "pos_emb_max_len": 500,
}
PREDICTION = {"pred_hidden": 16, "pred_rnn_layers": 1}
CONFIGS: dict[str, dict[str, Any]] = {
    "parakeet": {
        "target": "nemo.collections.asr.models.rnnt_bpe_models.EncDecRNNTBPEModel",
        "model_defaults": {"tdt_durations": [0, 1, 2]},
        "preprocessor": {
            "sample_rate": 16000,
            "normalize": "per_feature",
            "window_size": 0.025,
            "window_stride": 0.01,
            "window": "hann",
            "features": 80,
            "n_fft": 512,
            "dither": 0.0,
        },
        "encoder": {
            **CONFORMER,
            "self_attention_model": "rel_pos",
            "subsampling": "dw_striding",
            "causal_downsampling": False,
        },
        "decoder": {"blank_as_pad": True, "vocab_size": len(LETTERS), "prednet": PREDICTION},
        "joint": {
            "num_classes": len(LETTERS),
            "num_extra_outputs": 3,
            "vocabulary": LETTERS,
            "jointnet": {"joint_hidden": 16, "activation": "relu", "encoder_hidden": 32, "pred_hidden": 16},
        },
        "decoding": {"model_type": "tdt", "durations": [0, 1, 2], "greedy": {"max_symbols": 4}},
    },
    "nemotron_asr": {
        "model_type": "nemotron_asr",
        "preprocessor": {"features": 80, "n_fft": 512, "normalize": "NA"},
        "encoder": {
            **CONFORMER,
            "causal_downsampling": True,
            "conv_context_size": "causal",
            "conv_norm_type": "layer_norm",
            "att_context_style": "chunked_limited",
            "att_context_size": [[56, 13]],
            "use_bias": False,
        },
        "prompt": {
            "num_prompts": 4,
            "prompt_hidden": 16,
            "prompt_dictionary": {"en-US": 0, "de-DE": 2, "auto": 1},
        },
        "decoder": {**PREDICTION, "vocab_size": len(LETTERS), "blank_as_pad": True},
        "joint": {
            "joint_hidden": 16,
            "activation": "relu",
            "encoder_hidden": 32,
            "pred_hidden": 16,
            "num_classes": len(LETTERS),
        },
        "vocabulary": LETTERS,
        "default_language": "auto",
        "default_att_context_size": [56, 13],
        "max_symbols": 5,
    },
    "moonshine": {
        "model_type": "moonshine",
        "vocab_size": 128,
        "hidden_size": 32,
        "intermediate_size": 48,
        "encoder_num_hidden_layers": 2,
        "decoder_num_hidden_layers": 2,
        "encoder_num_attention_heads": 2,
        "decoder_num_attention_heads": 2,
    },
    "mms": {
        "model_type": "mms",
        "vocab_size": 32,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 48,
        "conv_dim": [16] * 7,
        "num_conv_pos_embeddings": 16,
        "num_conv_pos_embedding_groups": 2,
    },
}
SHORT, LONG = wav(0.6, 1), wav(1.7, 2)


def write_model(family: str, folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIGS[family]))
    package = importlib.import_module(f"mlx_audio.stt.models.{family}")
    mx.random.seed(3)
    model = package.Model(package.ModelConfig.from_dict(CONFIGS[family]))
    spread = [
        (name, array + 0.3 * mx.random.normal(array.shape) if array.ndim > 1 else array)
        for name, array in tree_flatten(model.parameters())
    ]
    if family in ("moonshine", "mms"):  # which are read in the layout of torch
        spread = [
            (name, array.swapaxes(1, 2) if _is_convolution(name, array) else array) for name, array in spread
        ]
    mx.save_safetensors(str(folder / "model.safetensors"), dict(spread), {"format": "mlx"})
    return folder


def _is_convolution(name: str, array: mx.array) -> bool:
    return "conv" in name and array.ndim == 3


@pytest.fixture(scope="module", params=list(CONFIGS))
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    folder = write_model(request.param, tmp_path_factory.mktemp("models") / f"{request.param}-tiny")
    with opened(folder) as found:
        yield found


def test_a_model_hears_through_pippin_as_by_itself(loaded: Loaded, tmp_path: Path) -> None:
    model = load_model(loaded[2])
    model.set_dtype(mx.float32)
    heard = []
    for data in (SHORT, LONG):
        file = tmp_path / "speech.wav"
        file.write_bytes(data)
        expected = model.generate(str(file))
        done = hear(loaded, data)[-1]
        assert isinstance(done, Transcribed), done
        assert done.text == expected.text.strip()
        heard.append(done.text)
    assert heard[0] != heard[1]


def test_what_a_family_has_no_argument_for_is_refused_by_name(loaded: Loaded) -> None:
    for fields in ({"prompt": "Pippin"}, {"words": True}, {"translate": True}):
        [failed] = hear(loaded, SHORT, **fields)
        assert isinstance(failed, Failed)
        assert "This model has no" in failed.error.message or "does not translate" in failed.error.message
    takes_language = loaded[2].name.startswith("nemotron")
    last = hear(loaded, SHORT, language="de-DE")[-1]
    assert isinstance(last, Transcribed) == takes_language
    assert isinstance(hear(loaded, SHORT, temperature=0.0)[-1], Transcribed)
    takes_length = loaded[2].name.startswith("moonshine")
    assert isinstance(hear(loaded, SHORT, max_tokens=3)[-1], Transcribed) == takes_length


@pytest.mark.parametrize("part", [None, "feature_extractor"])
def test_features_that_wav2vec2_s_class_does_not_read_are_refused_by_name(
    part: str | None, tmp_path: Path
) -> None:
    folder = write_model("mms", tmp_path / "mms-tiny")
    file = folder / ("preprocessor_config.json" if part is None else "processor_config.json")
    for value in (True, False, None):
        said = {"do_normalize": value, "feature_size": 1}
        file.write_text(json.dumps(said if part is None else {part: said}))
        if value:
            read_model(folder, "one")
            continue
        with pytest.raises(ServerError, match=f"hear with one: do_normalize {value}"):
            read_model(folder, "one")


@pytest.mark.parametrize("loaded", ["parakeet"], indirect=True)
def test_sentences_of_nemo_s_models_become_segments(loaded: Loaded) -> None:
    *events, done = hear(loaded, LONG)
    segments = [event for event in events if isinstance(event, Segment)]
    assert isinstance(done, Transcribed)
    assert "".join(each.text for each in segments).strip() == done.text
    times = [time for each in segments for time in (each.start, each.end)]
    assert times == sorted(times)
    assert 0 < times[-1] < 3
    assert done.usage.completion_tokens > 0


class Recorder(nn.Module):  # type: ignore[misc]
    """A model that notes what it is given."""

    def __init__(self, sample_rate: int) -> None:
        super().__init__()
        self.sample_rate = sample_rate

    def generate(self, audio: Any, *, source_lang: str = "en", sampling_rate: int | None = None) -> Any:
        self.given = (audio.size, source_lang, sampling_rate)
        return SimpleNamespace(text=" heard ", segments=[{"text": None, "start": None}], language=["en"])


@pytest.mark.parametrize("rate", [16000, 24000])
def test_a_model_hears_at_its_own_rate(rate: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Recorder(rate)
    monkeypatch.setattr("mlx_audio.stt.utils.load_model", lambda *_, **__: model)
    spec = WorkerSpec(info=ModelInfo(id="odd", kind="transcription", path=str(tmp_path)), threads=1)
    preparer, data = TranscriptionPreparer(spec), wav(1.0, 1, rate=48000)
    with pytest.raises(NeedsWeightsError):
        preparer.prepare("one", Transcribe(audio=data))
    engine = transcription.open_engine(spec, preparer, no_progress)
    done = hear((preparer, engine, tmp_path), data, language="de")[-1]
    size, language, told = model.given
    assert told == rate
    assert abs(size - rate) < 100
    assert language == "de"
    assert isinstance(done, Transcribed)
    assert (done.text, done.language) == ("heard", "de")
    assert done.duration == pytest.approx(1.0, abs=0.01)
    [failed] = hear((preparer, engine, tmp_path), data, max_tokens=3)
    assert isinstance(failed, Failed)
    assert "no `max_tokens`" in failed.error.message
    engine.close()


def test_a_model_whose_processor_refuses_arrays_is_given_a_file() -> None:
    heard: list[tuple[int, int]] = []

    class Voxtral(Recorder):
        def generate(self, audio: list[mx.array], *, max_tokens: int = 128) -> Any:  # type: ignore[override]
            with wave.open(audio) as file:  # type: ignore[call-overload]
                heard.append((file.getframerate(), file.getnframes()))
            return SimpleNamespace(text=f"{max_tokens}", segments=None)

    Voxtral.generate.__annotations__["audio"] = List[mx.array]  # noqa: UP006 (as mlx-audio writes it)
    events: list[Any] = []
    call: Any = SimpleNamespace(check=lambda: None, emit=events.append)
    transcribe(Transcribe(audio=b"", max_tokens=3), np.zeros(800, np.float32), 16000, Voxtral(16000), call)
    assert heard == [(16000, 1600)]  # a tenth of a second at least
    assert events[-1].text == "3"


def test_a_long_recording_is_heard_in_pieces_by_a_model_that_does_not_cut_it() -> None:
    heard: list[int] = []

    class Listener(Recorder):
        def generate(self, audio: Any) -> Any:  # type: ignore[override]
            heard.append(audio.size)
            return SimpleNamespace(text="and", segments=None)

    samples = np.random.default_rng(1).normal(size=16000 * 150).astype(np.float32)
    events: list[Any] = []
    call: Any = SimpleNamespace(check=lambda: None, emit=events.append)
    transcribe(Transcribe(audio=b""), samples, 16000, Listener(16000), call)
    assert sum(heard) == samples.size
    assert max(heard) <= 30 * 16000
    assert events[-1].text == " ".join(["and"] * len(heard))


class Aligner(nn.Module):  # type: ignore[misc]
    def generate(self, audio: Any, text: str, language: str = "English", **others: Any) -> Any: ...


@pytest.mark.parametrize(
    ("model", "problem"), [(nn.Module(), "no `generate`"), (Aligner(), "needs text beside the sound")]
)
def test_a_model_that_does_not_transcribe_is_refused_when_it_is_loaded(
    model: nn.Module, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlx_audio.stt.utils.load_model", lambda *_, **__: model)
    info = ModelInfo(id="odd", kind="transcription", path=str(tmp_path))
    spec = WorkerSpec(info=info, threads=1)
    with pytest.raises(ServerError, match=problem) as caught:
        transcription.open_engine(spec, TranscriptionPreparer(spec), no_progress).close()
    assert caught.value.report.kind == "load_failed"


def test_the_page_on_speech_names_every_family_of_the_library() -> None:
    page = (Path(__file__).parents[3] / "docs" / "audio.md").read_text("utf-8")
    families = {
        folder.name
        for kind in ("stt", "tts")
        for folder in (Path(mlx_audio.__file__).parent / kind / "models").iterdir()
        if folder.is_dir() and not folder.name.startswith("__")
    }
    assert {name for name in families if f"`{name}`" not in page} == set()
