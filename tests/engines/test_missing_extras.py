"""Without its extra every kind says which command installs it."""

import importlib
import importlib.util
import json
import sys
from pathlib import Path

import pytest

from pippin.config.errors import install_command
from pippin.core.conversation import Image, Inline, Message, Text
from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo, ModelKind, WorkerSpec
from pippin.core.requests import GenerationRequest
from pippin.core.tasks import Generate
from pippin.engines.language.prompt.preparer import open_preparer
from pippin.engines.sound import require_extra
from tests.engines.driving import no_progress
from tests.engines.language.vision.tiny_vision_models import picture, tiny_vision_model
from tests.engines.tiny_models import tiny_model


@pytest.mark.parametrize("kind", ["transcription", "speech"])
def test_a_model_that_mlx_audio_has_no_code_for_is_told_in_a_sentence(
    kind: ModelKind, tmp_path: Path
) -> None:
    folder = tiny_model("llama", tmp_path / "model")  # for its tokenizer
    (folder / "config.json").write_text('{"model_type": "eyes"}')
    doors = importlib.import_module(f"pippin.engines.{kind}")
    spec = WorkerSpec(info=ModelInfo(id="model", kind=kind, path=str(tmp_path / "model")))
    with pytest.raises(ServerError, match=r"mlx-audio can't .* with model: Model type eyes not supported"):
        doors.open_engine(spec, doors.open_preparer(spec), no_progress)


@pytest.mark.parametrize(
    ("kind", "missing", "command"),
    [
        ("embeddings", "mlx_vlm.models.bert", install_command("embeddings")),
        ("reranking", "mlx_vlm.models.bert", install_command("embeddings")),
        ("transcription", "mlx_audio", install_command("audio")),
        ("transcription", "av", install_command("audio")),
        ("speech", "mlx_audio", install_command("audio")),
        ("speech", "av", install_command("audio")),
    ],
)
def test_a_model_whose_extra_is_missing_does_not_load(
    kind: ModelKind, missing: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_vision_model("llava", tmp_path / "model")  # for its tokenizer
    config = {"model_type": "bert", "architectures": ["BertForSequenceClassification"]}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    monkeypatch.setitem(sys.modules, missing, None)
    doors = importlib.import_module(f"pippin.engines.{kind}")
    info = ModelInfo(id="model", kind=kind, path=str(tmp_path / "model"))
    spec = WorkerSpec(info=info, options={})
    with pytest.raises(ServerError) as caught:
        doors.open_engine(spec, doors.open_preparer(spec), no_progress)
    assert caught.value.report.kind == "load_failed"
    assert command in caught.value.report.message


@pytest.mark.parametrize(("missing", "named"), [("mlx_audio", "need mlx-audio:"), ("av", "need PyAV (av):")])
def test_the_package_of_sound_that_is_missing_is_named_and_no_other(
    missing: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else found(name))
    with pytest.raises(ServerError) as caught:
        require_extra()
    assert named in caught.value.report.message


def test_a_picture_for_a_model_that_could_see_it_is_refused_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tiny_vision_model("llava", tmp_path / "llava")
    monkeypatch.setitem(sys.modules, "mlx_vlm", None)
    spec = WorkerSpec(info=ModelInfo(id="llava", kind="language", path=str(folder)))
    preparer = open_preparer(spec)
    assert install_command("vision") in caplog.text
    shown = Message("user", (Text("Look:"), Image(Inline(picture(8, 8)))))
    with pytest.raises(ServerError) as caught:
        preparer.prepare("a", Generate(GenerationRequest(model="llava", messages=(shown,))))
    assert caught.value.report.param == "messages[0].content[1]"
    assert install_command("vision") in caught.value.report.message
