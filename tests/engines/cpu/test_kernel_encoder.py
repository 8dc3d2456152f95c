"""Encoders that the kernels for CPUs compute give what mlx-vlm's give in float32; others are left to MLX."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_map

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.engines.cpu.encoder import KernelEncoder, use_kernels
from pippin.engines.cpu.kernels import why_missing
from pippin.engines.encoding import EncoderInput, cast_weights, padded

pytestmark = pytest.mark.skipif(why_missing() is not None, reason=str(why_missing()))

SIZES = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 100,
    "max_position_embeddings": 120,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 1,
}


def made(architecture: str) -> nn.Module:
    """With random weights, of a size that lets every layer count."""
    from importlib import import_module

    module = import_module(f"mlx_vlm.models.{architecture}.{architecture}")
    config = module.ModelConfig.from_dict({"model_type": architecture.replace("_", "-"), **SIZES})
    mx.random.seed(3)
    model = module.Model(config)
    model.update(tree_map(lambda a: a + 0.05 * mx.random.normal(a.shape), model.parameters()))
    return model


def outputs(model: nn.Module, lengths: tuple[int, ...]) -> list[np.ndarray]:
    batch = [
        EncoderInput(tuple((7 * place + length) % 95 + 5 for place in range(length))) for length in lengths
    ]
    tokens, mask, _ = padded(batch, 1)
    out = model(tokens, attention_mask=mask)
    states = [np.array(out.last_hidden_state[row, :length]) for row, length in enumerate(lengths)]
    return [np.array(out.text_embeds), *states]


@pytest.mark.parametrize("lengths", [(1,), (9, 3), (100, 33, 64, 1)])
@pytest.mark.parametrize("architecture", ["bert", "xlm_roberta"])
def test_states_are_those_of_mlx_in_float32(architecture: str, lengths: tuple[int, ...]) -> None:
    model = made(architecture)
    expected = outputs(model, lengths)
    assert use_kernels(model, 2)
    for found, right in zip(outputs(model, lengths), expected, strict=True):
        assert np.abs(found - right).max() < 2e-5


@pytest.mark.parametrize("bits", [4, 8])
def test_quantised_encoders_stay_as_they_are_stored(bits: int) -> None:
    model = made("bert")
    nn.quantize(
        model,
        32,
        bits,
        class_predicate=lambda _, module: (
            isinstance(module, nn.Linear | nn.Embedding) and module.weight.shape[1] % 32 == 0
        ),
    )
    expected = outputs(model, (40, 12))
    assert use_kernels(model, 1)
    for found, right in zip(outputs(model, (40, 12)), expected, strict=True):
        assert np.abs(found - right).max() < 1e-4


@pytest.mark.parametrize(
    ("options", "uses"),
    [
        (ModelOptions(), True),
        (ModelOptions(cpu_kernels="off"), False),
        (ModelOptions(dtype="bfloat16"), False),
    ],
)
def test_the_options_decide(options: ModelOptions, uses: bool) -> None:
    model = made("bert")
    cast_weights(model, options, 2)
    assert isinstance(model.encoder, KernelEncoder) == uses


def test_an_encoder_that_is_not_known_runs_in_mlx_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Other(nn.Module):  # type: ignore[misc]
        model_type = "other"

    with caplog.at_level("INFO"):
        assert not use_kernels(Other(), 1)
    assert "the architecture 'other' is not one that they know" in caplog.text


@pytest.mark.parametrize("damage", [lambda a: a * float("nan"), lambda a: a[:-1]])
def test_damaged_weights_are_refused(damage: Any) -> None:
    model = made("bert")
    dense = model.encoder.layer[1].intermediate.dense
    dense.weight = damage(dense.weight)
    with pytest.raises(ServerError, match="cannot be used"):
        cast_weights(model, ModelOptions(), 1)


@pytest.mark.model
def test_a_real_model_gives_the_same_vectors(minilm: Path) -> None:
    from mlx_vlm.embedding_loader import load_embedding_model

    model = load_embedding_model(minilm, trust_remote_code=False)
    expected = outputs(model, (60, 7))[0]
    assert use_kernels(model, 2)
    assert np.abs(outputs(model, (60, 7))[0] - expected).max() < 1e-5
