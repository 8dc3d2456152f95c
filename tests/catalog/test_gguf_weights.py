"""What the import writes, value for value."""

import json
import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from pippin.catalog.gguf import import_gguf
from pippin.catalog.gguf.architectures import llama3_factors
from pippin.catalog.gguf.weights import StoredArray, write_safetensors
from pippin.core.errors import ServerError
from tests.catalog.gguf_files import HEAD, HEADS, HIDDEN, KEY_HEADS, WIDE, GgufFileBuilder

DOWN = "blk.0.ffn_down.weight"
MLX_DOWN = "model.layers.0.mlp.down_proj"
Q = gguf.GGMLQuantizationType


def imported(
    builder: GgufFileBuilder, tmp_path: Path, **options: Any
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The model's config.json and its arrays."""
    import_gguf(builder.write(tmp_path / "model.gguf"), tmp_path / "models", "m", **options)
    folder = tmp_path / "models" / "m"
    return json.loads((folder / "config.json").read_text()), _arrays(folder / "model.safetensors")


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Numpy has no bfloat16: those arrays are widened to float32."""
    header_length = int.from_bytes(path.read_bytes()[:8], "little")
    header = json.loads(path.read_bytes()[8 : 8 + header_length])
    data = path.read_bytes()[8 + header_length :]
    arrays: dict[str, NDArray[Any]] = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        start, end = entry["data_offsets"]
        dtype = {"U32": "<u4", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}[entry["dtype"]]
        array = np.frombuffer(data[start:end], dtype=dtype).reshape(entry["shape"])
        arrays[name] = (array.astype(np.uint32) << 16).view(np.float32) if entry["dtype"] == "BF16" else array
    return arrays


def affine(arrays: dict[str, NDArray[Any]], module: str, bits: int) -> NDArray[np.float32]:
    """MLX's dequantisation in float32: value i of a word lies in its bits from i * bits on."""
    words = arrays[f"{module}.weight"]
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    codes = (words[..., None] >> shifts & np.uint32(2**bits - 1)).reshape(words.shape[0], -1, 32)
    scales = arrays[f"{module}.scales"].astype(np.float32)[..., None]
    biases = arrays[f"{module}.biases"].astype(np.float32)[..., None]
    values: NDArray[np.float32] = (codes.astype(np.float32) * scales + biases).reshape(words.shape[0], -1)
    return values


@pytest.mark.parametrize(("kind", "bits"), [(Q.Q4_0, 4), (Q.Q4_1, 4), (Q.Q8_0, 8)])
def test_affine_types_keep_every_value(tmp_path: Path, kind: Q, bits: int) -> None:
    builder = GgufFileBuilder()
    builder.types[DOWN] = kind
    stored = gguf.quants.quantize(builder.tensors[DOWN], kind)
    config, arrays = imported(builder, tmp_path)
    assert config["quantization"] == {"group_size": 32, "bits": bits, "mode": "affine"}
    assert np.array_equal(affine(arrays, MLX_DOWN, bits), gguf.quants.dequantize(stored, kind))
    assert arrays[f"{MLX_DOWN}.scales"].dtype == np.float16


@pytest.mark.parametrize("kind", [Q.Q4_0, Q.Q8_0])
def test_scales_too_large_for_float16_biases_keep_every_value(tmp_path: Path, kind: Q) -> None:
    builder = GgufFileBuilder()
    stored = gguf.quants.quantize(builder.tensors[DOWN] * 1e6, kind)
    builder.tensors[DOWN], builder.types[DOWN] = stored, kind
    _, arrays = imported(builder, tmp_path)
    assert arrays[f"{MLX_DOWN}.scales"].dtype == np.float32
    assert np.array_equal(
        affine(arrays, MLX_DOWN, 4 if kind == Q.Q4_0 else 8), gguf.quants.dequantize(stored, kind)
    )


def test_16_bit_weights_stay_as_they_are(tmp_path: Path) -> None:
    builder = GgufFileBuilder()
    half, brain = "blk.0.ffn_up.weight", "blk.0.ffn_gate.weight"
    builder.types |= {half: Q.F16, brain: Q.BF16}
    _, arrays = imported(builder, tmp_path)
    wanted = builder.tensors[half].astype(np.float16)
    assert np.array_equal(arrays["model.layers.0.mlp.up_proj.weight"], wanted)
    stored = gguf.quants.quantize(builder.tensors[brain], Q.BF16)
    assert np.array_equal(
        arrays["model.layers.0.mlp.gate_proj.weight"], gguf.quants.dequantize(stored, Q.BF16)
    )


def test_float32_weights_are_narrowed_only_where_that_loses_nothing(tmp_path: Path) -> None:
    builder = GgufFileBuilder()
    exact, inexact = "blk.0.ffn_norm.weight", "blk.0.attn_norm.weight"
    builder.tensors[exact] = builder.tensors[exact].astype(np.float16).astype(np.float32)
    _, arrays = imported(builder, tmp_path)
    narrow = arrays["model.layers.0.post_attention_layernorm.weight"]
    assert narrow.dtype == np.float16
    assert np.array_equal(narrow, builder.tensors[exact])
    wide = arrays["model.layers.0.input_layernorm.weight"]
    assert wide.dtype == np.float32
    assert np.array_equal(wide, builder.tensors[inexact])


SCALES_AT = {Q.Q2_K: (80, 82), Q.Q3_K: (108,), Q.Q4_K: (0, 2), Q.Q5_K: (0, 2), Q.Q6_K: (208,)} | {
    kind: ((gguf.GGML_QUANT_SIZES[kind][1] - 2) * kind.name.startswith("TQ"),)
    for kind in (
        Q[name] for name in "IQ1_S IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ4_NL IQ4_XS TQ1_0 TQ2_0".split()
    )
}
"""Where a block has its scales, in float16."""


def k_quantised(builder: GgufFileBuilder, kind: Q) -> NDArray[np.uint8]:
    """Random blocks of such a type with sane scales, as the weights of the first down projection."""
    wide = 256
    builder.metadata["llama.feed_forward_length"] = wide
    for layer in range(2):
        for name, shape in (("gate", (wide, HIDDEN)), ("up", (wide, HIDDEN)), ("down", (HIDDEN, wide))):
            builder.tensors[f"blk.{layer}.ffn_{name}.weight"] = builder.values(*shape)
    numbers, size = gguf.GGML_QUANT_SIZES[kind]
    raw = builder.random.integers(0, 256, (HIDDEN * wide // numbers, size), dtype=np.uint8)
    for start in SCALES_AT[kind]:
        scales = (builder.random.random(len(raw)) * 0.01).astype(np.float16)
        raw[:, start : start + 2] = scales.view(np.uint8).reshape(-1, 2)
    raw = raw.reshape(HIDDEN, -1)
    builder.tensors[DOWN], builder.types[DOWN] = raw, kind
    return raw


@pytest.mark.parametrize("kind", list(SCALES_AT))
def test_k_quants_and_i_quants_are_dequantised(tmp_path: Path, kind: Q) -> None:
    builder = GgufFileBuilder()
    wanted = gguf.quants.dequantize(k_quantised(builder, kind), kind)
    config, arrays = imported(builder, tmp_path)
    assert "quantization" not in config
    assert np.array_equal(arrays[f"{MLX_DOWN}.weight"], wanted.astype(np.float16))


@pytest.mark.parametrize(("target", "error"), [("float32", 0.0), ("float16", 2**-11), ("bfloat16", 2**-8)])
def test_k_quants_are_rounded_to_the_type_that_is_asked_for(
    tmp_path: Path, target: Any, error: float
) -> None:
    builder = GgufFileBuilder()
    wanted = gguf.quants.dequantize(k_quantised(builder, Q.Q4_K), Q.Q4_K)
    config, arrays = imported(builder, tmp_path, dense_type=target)
    assert config["torch_dtype"] == target
    difference = np.abs(arrays[f"{MLX_DOWN}.weight"].astype(np.float32) - wanted)
    assert (difference <= error * np.abs(wanted) + 1e-7 * (error > 0)).all()


def interleave(weights: NDArray[Any], heads: int) -> NDArray[Any]:
    """What llama.cpp's converter does to q and k (`permute` of its LlamaModel)."""
    half = weights.shape[0] // heads // 2
    return weights.reshape(heads, 2, half, *weights.shape[1:]).swapaxes(1, 2).reshape(weights.shape)


@pytest.mark.parametrize("kind", [None, Q.F16, Q.Q4_1, Q.Q8_0])
def test_the_interleaving_of_llamas_rotary_rows_is_undone(tmp_path: Path, kind: Q | None) -> None:
    builder = GgufFileBuilder()
    original = {"q": builder.values(HEADS * HEAD, HIDDEN), "k": builder.values(KEY_HEADS * HEAD, HIDDEN)}
    for letter, heads in (("q", HEADS), ("k", KEY_HEADS)):
        name = f"blk.0.attn_{letter}.weight"
        builder.tensors[name] = interleave(original[letter], heads)
        if kind is not None:
            builder.types[name] = kind
    _, arrays = imported(builder, tmp_path)
    for letter, weights in original.items():
        module = f"model.layers.0.self_attn.{letter}_proj"
        if kind in (None, Q.F16):
            assert np.allclose(arrays[f"{module}.weight"], weights, atol=1e-3 if kind else 0)
        else:
            wanted = gguf.quants.dequantize(gguf.quants.quantize(weights, kind), kind)
            assert np.array_equal(affine(arrays, module, 4 if kind == Q.Q4_1 else 8), wanted)


def test_llamas_biases_are_reordered_with_their_rows(tmp_path: Path) -> None:
    builder = GgufFileBuilder()
    bias = builder.values(HEADS * HEAD)
    for layer in range(2):
        builder.tensors[f"blk.{layer}.attn_q.bias"] = interleave(bias, HEADS)
        builder.tensors[f"blk.{layer}.attn_k.bias"] = builder.values(KEY_HEADS * HEAD)
        builder.tensors[f"blk.{layer}.attn_v.bias"] = builder.values(KEY_HEADS * HEAD)
        builder.tensors[f"blk.{layer}.attn_output.bias"] = builder.values(HIDDEN)
    config, arrays = imported(builder, tmp_path)
    assert config["attention_bias"] is True
    assert np.array_equal(arrays["model.layers.1.self_attn.q_proj.bias"], bias)


def test_gemmas_norms_lose_the_one_that_was_added(tmp_path: Path) -> None:
    builder = GgufFileBuilder("gemma3")
    original = (gguf.quants.quantize(builder.values(HIDDEN), Q.BF16)).view("<u2").astype(np.uint32) << 16
    builder.tensors["output_norm.weight"] = 1 + original.view(np.float32)
    config, arrays = imported(builder, tmp_path)
    assert config["torch_dtype"] == "bfloat16"
    assert np.array_equal(arrays["model.norm.weight"], original.view(np.float32))
    inexact = builder.tensors["blk.0.ffn_norm.weight"]
    found = arrays["model.layers.0.pre_feedforward_layernorm.weight"]
    assert np.array_equal(found + np.float32(1), inexact)


def test_types_that_differ_are_named_layer_by_layer(tmp_path: Path) -> None:
    builder = GgufFileBuilder(tied=False)
    builder.types = {name: Q.Q4_0 for name in builder.tensors if ".ffn_" in name and "norm" not in name}
    builder.types["output.weight"] = Q.Q8_0
    config, _ = imported(builder, tmp_path)
    assert config["quantization"] == {
        "group_size": 32,
        "bits": 4,
        "mode": "affine",
        "lm_head": {"group_size": 32, "bits": 8},
    }
    assert config["tie_word_embeddings"] is False


def test_llama_3s_rope_scaling_is_found_from_its_factors(tmp_path: Path) -> None:
    builder = GgufFileBuilder()
    builder.metadata["llama.rope.freq_base"] = 500000.0
    builder.tensors["rope_freqs.weight"] = llama3_factors(HEAD, 500000.0, 32.0).astype(np.float32)
    config, _ = imported(builder, tmp_path)
    assert config["rope_scaling"]["rope_type"] == "llama3"
    assert config["rope_scaling"]["factor"] == 32.0


def test_unknown_rope_factors_are_refused(tmp_path: Path) -> None:
    builder = GgufFileBuilder()
    builder.tensors["rope_freqs.weight"] = np.linspace(1, 9, HEAD // 2).astype(np.float32)
    with pytest.raises(ServerError) as caught:
        imported(builder, tmp_path)
    assert caught.value.report.kind == "unsupported"


@pytest.mark.parametrize(("kind", "wanted"), [("linear", "linear"), (None, "linear"), ("yarn", "yarn")])
def test_rope_scaling_is_taken_over(tmp_path: Path, kind: str | None, wanted: str) -> None:
    builder = GgufFileBuilder("qwen3")
    builder.metadata["qwen3.rope.scaling.factor"] = 4.0
    if kind is not None:
        builder.metadata["qwen3.rope.scaling.type"] = kind
    builder.metadata["qwen3.rope.scaling.original_context_length"] = 32
    config, _ = imported(builder, tmp_path)
    assert (config["rope_scaling"]["rope_type"], config["rope_scaling"]["factor"]) == (wanted, 4.0)


def test_yarn_has_the_factors_that_the_file_names(tmp_path: Path) -> None:
    builder = GgufFileBuilder("qwen3")
    told = {"type": "yarn", "factor": 4.0, "yarn_beta_fast": 16.0, "yarn_beta_slow": 2.0, "attn_factor": 1.5}
    builder.metadata |= {f"qwen3.rope.scaling.{name}": value for name, value in told.items()}
    scaling = imported(builder, tmp_path)[0]["rope_scaling"]
    assert (scaling["beta_fast"], scaling["beta_slow"]) == (16.0, 2.0)
    assert scaling["attention_factor"] == pytest.approx(1.5 * (0.1 * math.log(4) + 1))


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gemma3"])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("attention.scale", 0.5), ("final_logit_softcapping", 30.0), ("logit_scale", 0.25)),
        *(("attention.causal", False), ("rope.scaling.yarn_log_multiplier", 0.1)),
    ],
)
def test_a_key_that_changes_the_answers_is_refused_by_name(
    tmp_path: Path, architecture: str, key: str, value: float
) -> None:
    builder = GgufFileBuilder(architecture)
    builder.metadata[f"{architecture}.{key}"] = value
    with pytest.raises(ServerError, match=key):
        imported(builder, tmp_path)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gemma3"])
@pytest.mark.parametrize("tied", [True, False])
def test_mlx_lm_loads_what_was_imported(tmp_path: Path, architecture: str, tied: bool) -> None:
    import mlx.core as mx
    from mlx_lm import load

    builder = GgufFileBuilder(architecture, tied=tied)
    builder.types = {
        name: Q.Q8_0 for name in builder.tensors if "ffn_down" in name or "attn_q.weight" in name
    }
    import_gguf(builder.write(tmp_path / "model.gguf"), tmp_path / "models", "m")
    model, tokenizer = load(str(tmp_path / "models" / "m"))
    ids = tokenizer.encode("hello hello")
    assert tokenizer.decode(ids) == "hello hello"
    logits = model(mx.array([ids])).astype(mx.float32)
    assert logits.shape == (1, len(ids), len(builder.tensors["token_embd.weight"]))
    assert bool(mx.isfinite(logits).all())


def test_arrays_are_read_as_they_were_written(tmp_path: Path) -> None:
    arrays = {f"model.layers.1023.a{number}": np.full(16, number, dtype=np.float32) for number in range(3)}
    stored = ((name, StoredArray(array, "F32", (4, 4))) for name, array in arrays.items())
    write_safetensors(tmp_path / "model.safetensors", stored, len(arrays))
    found = load_file(tmp_path / "model.safetensors")
    assert found.keys() == arrays.keys()
    assert all(np.array_equal(found[name], array.reshape(4, 4)) for name, array in arrays.items())


def test_the_shapes_of_the_test_files_are_the_ones_meant() -> None:
    assert GgufFileBuilder().tensors[DOWN].shape == (HIDDEN, WIDE)
