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
from pippin.engines.cpu.kernels import why_missing
from pippin.engines.encoding import EncoderInput, load_encoder, padded
from pippin.engines.language.kernels.agreement import OtherAnswer
from pippin.engines.language.kernels.ways import computes_all, put_encoder_on, way_of_encoder

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
CHANGES: dict[str, dict[str, Any]] = {
    "modernbert": {
        "num_hidden_layers": 5,
        "local_attention": 20,
        "norm_bias": True,
        "attention_bias": True,
        "mlp_bias": True,
    },
}
ARCHITECTURES = ("bert", "xlm_roberta", "modernbert")


def made(architecture: str, **changes: Any) -> nn.Module:
    """With random weights, of a size that lets every layer count."""
    from importlib import import_module

    module = import_module(f"mlx_vlm.models.{architecture}.{architecture}")
    sizes = {**SIZES, **CHANGES.get(architecture, {}), **changes}
    config = module.ModelConfig.from_dict({"model_type": architecture.replace("_", "-"), **sizes})
    mx.random.seed(3)
    model = module.Model(config)
    model.update(tree_map(lambda a: a + 0.05 * mx.random.normal(a.shape), model.parameters()))
    if architecture == "modernbert":
        for layer in model.layers:  # as its configuration says; mlx-vlm takes the form with tanh
            layer.mlp.act = nn.GELU()
    return model


def on_kernels(model: nn.Module, threads: int = 2) -> nn.Module:
    assert way_of_encoder(model).means == "fused layers"
    return put_encoder_on(model, threads)


def outputs(model: nn.Module, lengths: tuple[int, ...]) -> list[np.ndarray]:
    batch = [
        EncoderInput(tuple((7 * place + length) % 95 + 5 for place in range(length))) for length in lengths
    ]
    tokens, mask, _ = padded(batch, 1)
    out = model(tokens, attention_mask=mask)
    states = [np.array(out.last_hidden_state[row, :length]) for row, length in enumerate(lengths)]
    return [np.array(out.text_embeds), *states]


@pytest.mark.parametrize("lengths", [(1,), (9, 3), (100, 33, 64, 1)])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_states_are_those_of_mlx_in_float32(architecture: str, lengths: tuple[int, ...]) -> None:
    model = made(architecture)
    expected = outputs(model, lengths)
    for found, right in zip(outputs(on_kernels(model), lengths), expected, strict=True):
        assert np.abs(found - right).max() < 2e-5


def test_a_modernbert_without_biases_has_its_states() -> None:
    model = made("modernbert", norm_bias=False, attention_bias=False, mlp_bias=False)
    expected = outputs(model, (30, 64))
    for found, right in zip(outputs(on_kernels(model), (30, 64)), expected, strict=True):
        assert np.abs(found - right).max() < 2e-5


@pytest.mark.parametrize(
    ("architecture", "damage"),
    [
        ("bert", lambda layer: setattr(layer.intermediate, "intermediate_act_fn", nn.ReLU())),
        ("modernbert", lambda layer: setattr(layer.attn, "scale", 0.5)),
    ],
)
def test_layers_that_are_no_longer_what_the_kernels_know_run_in_mlx(
    architecture: str, damage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def load() -> nn.Module:
        model = made(architecture)
        damage((model.encoder.layer if architecture == "bert" else model.layers)[0])
        return model

    expected = outputs(load(), (9, 3))
    with pytest.raises(OtherAnswer, match="layer 0 computed by the kernels"):
        put_encoder_on(load(), 1)
    with caplog.at_level("WARNING"):
        found = load_encoder(load, ModelOptions(), 1)
    assert "layer 0 computed by the kernels" in caplog.text
    assert not computes_all(found)
    assert np.abs(outputs(found, (9, 3))[0] - expected[0]).max() < 1e-5


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("architecture", ["bert", "modernbert"])
def test_quantised_encoders_stay_as_they_are_stored(architecture: str, bits: int) -> None:
    model = made(architecture, hidden_size=64)
    nn.quantize(
        model,
        32,
        bits,
        class_predicate=lambda _, module: (
            isinstance(module, nn.Linear | nn.Embedding) and module.weight.shape[1] % 32 == 0
        ),
    )
    expected = outputs(model, (40, 12))
    for found, right in zip(outputs(on_kernels(model, 1), (40, 12)), expected, strict=True):
        assert np.abs(found - right).max() < 1e-4


@pytest.mark.parametrize("architecture", ["bert", "modernbert"])
def test_activations_are_rounded_where_that_is_asked_for(architecture: str) -> None:
    def load() -> nn.Module:
        model = made(architecture, hidden_size=64)
        nn.quantize(model, 32, 8, class_predicate=lambda _, module: isinstance(module, nn.Linear))
        return model

    exact, rounded = (
        outputs(load_encoder(load, ModelOptions(cpu_activations=kind), 1), (40, 12))[0]
        for kind in ("float32", "int8")
    )
    assert 1e-5 < np.abs(exact - rounded).max() < 0.05


@pytest.mark.parametrize(
    ("options", "uses"),
    [
        (ModelOptions(), True),
        (ModelOptions(cpu_kernels="off"), False),
        (ModelOptions(dtype="bfloat16"), False),
    ],
)
def test_the_options_decide(options: ModelOptions, uses: bool) -> None:
    model = load_encoder(lambda: made("bert"), options, 2)
    assert computes_all(model.encoder) == uses


def test_an_encoder_that_is_not_known_runs_in_mlx_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Other(nn.Module):  # type: ignore[misc]
        model_type = "other"

    with caplog.at_level("INFO"):
        load_encoder(Other, ModelOptions(), 1)
    assert "the architecture 'other' is not one that they know" in caplog.text


@pytest.mark.parametrize("damage", [lambda a: a * float("nan"), lambda a: a[:-1]])
def test_damaged_weights_are_refused(damage: Any) -> None:
    def load() -> nn.Module:
        model = made("bert")
        dense = model.encoder.layer[1].intermediate.dense
        dense.weight = damage(dense.weight)
        return model

    with pytest.raises(ServerError, match="cannot be used"):
        load_encoder(load, ModelOptions(), 1)


@pytest.mark.model
def test_a_real_model_gives_the_same_vectors(minilm: Path) -> None:
    from mlx_vlm.embedding_loader import load_embedding_model

    model = load_embedding_model(minilm, trust_remote_code=False)
    expected = outputs(model, (60, 7))[0]
    assert np.abs(outputs(on_kernels(model), (60, 7))[0] - expected).max() < 1e-5
