"""A model that hears is loaded with its own weights and settings, or refused by name."""

import json
from pathlib import Path

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_audio.stt.models import moonshine

from pippin.core.errors import ServerError
from pippin.engines.transcription import read_model
from tests.engines.speech.tiny_hearing import write_hearing_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_hearing_model("canary", tmp_path / "canary")


def without(folder: Path, lost: str, more: dict[str, mx.array] | None = None) -> str:
    """Take away the first weight whose name ends so, and return its name."""
    file = str(folder / "model.safetensors")
    arrays = mx.load(file)
    assert isinstance(arrays, dict)
    name = min(each for each in arrays if each.endswith(lost))
    mx.eval(arrays)
    kept = {each: array for each, array in arrays.items() if each != name}
    mx.save_safetensors(file, kept | (more or {}), {"format": "mlx"})
    return name


def test_a_layer_without_weights_does_not_answer_with_random_numbers(folder: Path) -> None:
    name = without(folder, "linear1.weight", {"unused": mx.zeros(1)})
    with pytest.raises(ServerError, match=f"its files lack {name}"):
        read_model(folder, "canary")


def test_weights_that_nothing_uses_are_left(folder: Path) -> None:
    without(folder, "linear1.bias", {"unused": mx.zeros(1)})
    read_model(folder, "canary")


@pytest.mark.parametrize(("theta", "refused"), [(10000.0, False), (20000.0, True)])
def test_rotations_in_transformers_newest_form_are_read_or_refused(
    theta: float, refused: bool, tmp_path: Path
) -> None:
    sizes = dict.fromkeys(("encoder_num_hidden_layers", "decoder_num_hidden_layers"), 1)
    heads = dict.fromkeys(("encoder_num_attention_heads", "decoder_num_attention_heads"), 2)
    config = {"model_type": "moonshine", "vocab_size": 20, "hidden_size": 32, "intermediate_size": 48}
    config |= sizes | heads | {"rope_parameters": {"rope_theta": theta, "rope_type": "default"}}
    model = moonshine.Model(moonshine.ModelConfig.from_dict(config))
    arrays = {name: a.swapaxes(1, 2) if a.ndim == 3 else a for name, a in tree_flatten(model.parameters())}
    mx.save_safetensors(str(tmp_path / "model.safetensors"), arrays)
    (tmp_path / "config.json").write_text(json.dumps(config))
    if refused:
        with pytest.raises(ServerError, match=r"rope_theta 20000\.0 of rope_parameters"):
            read_model(tmp_path, "moonshine")
    else:
        read_model(tmp_path, "moonshine")
