"""Weights that other tools have packed: the numbers that their formats define are the model's."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec
import numpy as np
import pytest
from mlx_lm.models.cache import make_prompt_cache
from numpy.typing import NDArray
from safetensors.numpy import load_file

from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo
from pippin.engines.cpu.kernels import why_missing
from pippin.engines.language.model.weights import load_weights
from pippin.engines.language.upstream.quantised import unquantised
from tests.engines.language.bench import PLAN
from tests.engines.tiny_models import TinyModels

Floats = NDArray[np.float32]
Tensor = tuple[str, NDArray[Any]]  # the type in a safetensors file, and the bytes
Packed = tuple[dict[str, Tensor], Floats]
"""The tensors of one matrix by the last parts of their names, and the numbers that they stand for."""

GROUP = 32
TOKENS = mx.array([[5, 90, 31, 7, 140, 18]])
TYPES = {"float32": "F32", "int32": "I32", "int64": "I64", "int8": "I8", "uint8": "U8", "float16": "F16"}


def plain(array: NDArray[Any]) -> Tensor:
    return TYPES[str(array.dtype)], np.ascontiguousarray(array)


def words_of(numbers: NDArray[Any], bits: int) -> NDArray[np.int32]:
    """Numbers [rows, n] in words [rows, n bits / 32], the lowest bits first."""
    rows = []
    for row in numbers:
        bytes_ = np.packbits(
            ((row[:, None].astype(np.uint8) >> np.arange(bits)) & 1).astype(np.uint8).reshape(-1),
            bitorder="little",
        )
        rows.append(bytes_.view(np.int32))
    return np.stack(rows)


def rounded(weight: Floats, bits: int, groups: int) -> tuple[NDArray[np.uint8], Floats, NDArray[np.uint8]]:
    """Numbers [out, in], scales and zeros [out, groups] near a matrix; no two groups have the same zero."""
    most = (1 << bits) - 1
    split = weight.reshape(len(weight), groups, -1)
    low, high = split.min(-1), split.max(-1)
    scales = ((high - low) / most).astype(np.float16).astype(np.float32)
    zeros = np.clip(np.round(-low / scales), 1, most)
    numbers = np.clip(np.round(split / scales[..., None]) + zeros[..., None], 0, most)
    return numbers.reshape(weight.shape).astype(np.uint8), scales, zeros.astype(np.uint8)


def per_column(per_group: NDArray[Any], index: NDArray[Any]) -> Floats:
    return per_group[:, index].astype(np.float32)


def gptq(bits: int, *, ordered: bool = True, version: int = 1) -> Callable[[Floats], Packed]:
    def pack(weight: Floats) -> Packed:
        groups = weight.shape[1] // GROUP
        numbers, scales, zeros = rounded(weight, bits, groups)
        index = np.arange(weight.shape[1]) // GROUP
        if not ordered:
            index = np.random.default_rng(1).permutation(index)
        stands_for = (numbers - per_column(zeros, index)) * per_column(scales, index)
        tensors = {
            "qweight": plain(words_of(numbers, bits).T),
            "qzeros": plain(words_of(zeros.T - (2 - version), bits)),
            "scales": plain(scales.T.astype(np.float16)),
        }
        return tensors if ordered and version == 1 else tensors | {
            "g_idx": plain(index.astype(np.int32))
        }, stands_for

    return pack


def awq(weight: Floats) -> Packed:
    numbers, scales, zeros = rounded(weight, 4, weight.shape[1] // GROUP)

    def interleaved(rows: NDArray[np.uint8]) -> NDArray[np.int32]:
        places = rows.reshape(len(rows), -1, 8)[..., [0, 2, 4, 6, 1, 3, 5, 7]]
        return words_of(places.reshape(rows.shape), 4)

    index = np.arange(weight.shape[1]) // GROUP
    return {
        "qweight": plain(interleaved(numbers.T)),
        "qzeros": plain(interleaved(zeros.T)),
        "scales": plain(scales.T.astype(np.float16)),
    }, (numbers - per_column(zeros, index)) * per_column(scales, index)


def packed(bits: int, groups: int | None = None, *, symmetric: bool = True) -> Callable[[Floats], Packed]:
    def pack(weight: Floats) -> Packed:
        count = groups or weight.shape[1] // GROUP
        numbers, scales, zeros = rounded(weight, bits, count)
        if symmetric:
            zeros = np.full_like(zeros, 1 << (bits - 1))
        index = np.arange(weight.shape[1]) * count // weight.shape[1]
        tensors = {
            "weight_packed": plain(words_of(numbers, bits)),
            "weight_scale": plain(scales),
            "weight_shape": plain(np.array(weight.shape, np.int64)),
        }
        if not symmetric:
            tensors["weight_zero_point"] = plain(words_of(zeros.T, bits).T)
        return tensors, (numbers - per_column(zeros, index)) * per_column(scales, index)

    return pack


def fp8(weight: Floats) -> tuple[Tensor, Floats]:
    bytes_ = mx.to_fp8(mx.array(weight))
    return ("F8_E4M3", np.array(bytes_)), np.array(mx.from_fp8(bytes_, dtype=mx.float32))


def by_rows(weight: Floats) -> Packed:
    scales = (np.abs(weight).max(1, keepdims=True) / 448).astype(np.float32)
    stored, numbers = fp8(weight / scales)
    return {
        "weight": stored,
        "weight_scale": plain(scales),
        "input_scale": plain(scales[0]),
    }, numbers * scales


def whole(weight: Floats) -> Packed:
    scale = np.array([np.abs(weight).max() / 448], np.float32)
    stored, numbers = fp8(weight / scale)
    return {"weight": stored, "weight_scale": plain(scale)}, numbers * scale


def blocks(weight: Floats) -> Packed:
    size = 40  # no side of a matrix is a multiple of it
    rows, columns = (-(-side // size) for side in weight.shape)
    scales = np.random.default_rng(2).uniform(0.001, 0.004, (rows, columns)).astype(np.float32)
    wide = scales.repeat(size, 0).repeat(size, 1)[: weight.shape[0], : weight.shape[1]]
    stored, numbers = fp8(weight / wide)
    return {"weight": stored, "weight_scale_inv": plain(scales)}, numbers * wide


def bytes_by_rows(weight: Floats) -> Packed:
    scales = (np.abs(weight).max(1, keepdims=True) / 127).astype(np.float32)
    numbers = np.round(weight / scales).astype(np.int8)
    return {"weight": plain(numbers), "weight_scale": plain(scales)}, numbers * scales


def bytes_with_zeros(groups: int, *, whole: bool = False) -> Callable[[Floats], Packed]:
    def pack(weight: Floats) -> Packed:
        numbers, scales, zeros = rounded(weight.reshape(1, -1) if whole else weight, 8, groups)
        stored, offsets = ((each.astype(np.int16) - 128).astype(np.int8) for each in (numbers, zeros))
        index = np.arange(numbers.shape[1]) * groups // numbers.shape[1]
        stands_for = (numbers - per_column(zeros, index)) * per_column(scales, index)
        return {
            "weight": plain(stored.reshape(weight.shape)),
            "weight_scale": plain(scales.reshape(-1) if whole else scales),
            "weight_zero_point": plain(offsets.reshape(-1) if whole else offsets),
        }, stands_for.reshape(weight.shape)

    return pack


def of_turns(*packs: Callable[[Floats], Packed]) -> Callable[[Floats], Packed]:
    """One format for each matrix in turn."""
    turns = itertools.cycle(packs)
    return lambda weight: next(turns)(weight)


def llm_int8(weight: Floats) -> Packed:
    largest = np.abs(weight).max(1).astype(np.float32)
    numbers = np.round(weight / largest[:, None] * 127).astype(np.int8)
    return {"weight": plain(numbers), "SCB": plain(largest)}, numbers * (largest / 127)[:, None]


def nf4(*, nested: bool) -> Callable[[Floats], Packed]:
    def pack(weight: Floats) -> Packed:
        table = np.sort(np.random.default_rng(3).uniform(-1, 1, 16)).astype(np.float32)
        flat = weight.reshape(-1, 64)
        largest = np.abs(flat).max(1).astype(np.float32)
        state: dict[str, Any] = {"quant_type": "nf4", "blocksize": 64, "shape": list(weight.shape)}
        tensors = {"weight.quant_map": plain(table), "weight.absmax": plain(largest)}
        if nested:
            inner = np.linspace(-1, 1, 256, dtype=np.float32)
            outer = np.full(-(-largest.size // 256), np.abs(largest - 0.1).max(), np.float32)
            places = np.abs((largest[:, None] - 0.1) / outer[0] - inner).argmin(1).astype(np.uint8)
            largest = inner[places] * outer[0] + np.float32(0.1)
            state |= {"nested_blocksize": 256, "nested_offset": 0.1}
            tensors |= {
                "weight.absmax": plain(places),
                "weight.nested_absmax": plain(outer),
                "weight.nested_quant_map": plain(inner),
            }
        chosen = np.abs(flat[..., None] / largest[:, None, None] - table).argmin(-1).astype(np.uint8)
        pairs = chosen.reshape(-1, 2)
        tensors["weight"] = plain((pairs[:, 0] << 4 | pairs[:, 1])[:, None])
        told = np.frombuffer(json.dumps(state).encode(), np.uint8)
        tensors["weight.quant_state.bitsandbytes__nf4"] = plain(told)
        return tensors, (table[chosen] * largest[:, None]).reshape(weight.shape)

    return pack


POINTS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def four_bits(*, group: int, by: str) -> Callable[[Floats], Packed]:
    """Numbers with points in 4 bits: with powers of two for each group, or scales of 8 bits and one of the whole."""

    def pack(weight: Floats) -> Packed:
        split = weight.reshape(len(weight), -1, group)
        largest = np.abs(split).max(-1) / 6
        exponents = (np.ceil(np.log2(largest)) + 127).astype(np.uint8)
        stored, whole = plain(exponents), np.array([1.0], np.float32)
        scales = np.exp2(exponents.astype(np.float32) - 127)
        if by != "powers":
            whole[:] = largest.max() / 448
            stored, scales = fp8(largest / whole)
            scales = np.maximum(scales * whole, 1e-9)
        places = np.abs(np.abs(split)[..., None] / scales[..., None, None] - POINTS).argmin(-1)
        numbers = np.where(split < 0, -POINTS[places], POINTS[places]) * scales[..., None]
        pairs = (places + 8 * (split < 0)).astype(np.uint8).reshape(len(weight), -1, 2)
        words = plain(pairs[..., 0] | pairs[..., 1] << 4)
        tensors = {
            "powers": {"weight_packed": words, "weight_scale": stored},
            "divisor": {
                "weight_packed": words,
                "weight_scale": stored,
                "weight_global_scale": plain(1 / whole),
                "input_global_scale": plain(whole),
            },
            "factor": {"weight": words, "weight_scale": stored, "weight_scale_2": plain(whole)},
        }
        return tensors[by], numbers.reshape(weight.shape)

    return pack


def eight_bits(weight: Floats) -> Packed:
    split = weight.reshape(len(weight), -1, GROUP)
    exponents = (np.ceil(np.log2(np.abs(split).max(-1) / 448)) + 127).astype(np.uint8)
    scales = np.exp2(exponents.astype(np.float32) - 127)[..., None]
    stored, numbers = fp8((split / scales).reshape(weight.shape))
    tensors = {"weight": stored, "weight_scale": plain(exponents)}
    return tensors, (numbers.reshape(split.shape) * scales).reshape(weight.shape)


def of_one_scale(weight: Floats) -> Packed:
    scale = np.array([np.abs(weight).max() / 127], np.float32)
    numbers = np.round(weight / scale) + 128
    words = {
        "weight_packed": plain(words_of(numbers.astype(np.uint8), 8)),
        "weight_shape": plain(np.array(weight.shape, np.int64)),
    }
    return words | {"weight_scale": plain(scale)}, (numbers - 128) * scale


def in_wider_words(pack: Callable[[Floats], Packed]) -> Callable[[Floats], Packed]:
    def packed(weight: Floats) -> Packed:
        tensors, numbers = pack(weight)
        return tensors | {"weight": ("BF16", tensors["weight"][1].reshape(-1, 2).view(np.uint16))}, numbers

    return packed


COMPRESSED = {"quant_method": "compressed-tensors"}
FORMATS: dict[str, tuple[dict[str, Any], Callable[[Floats], Packed]]] = {
    "gptq 4 bits": ({"quant_method": "gptq", "bits": 4, "group_size": GROUP}, gptq(4)),
    "gptq 8 bits": ({"quant_method": "gptq", "bits": 8, "group_size": GROUP}, gptq(8)),
    "gptq in another order": ({"quant_method": "gptq", "bits": 4}, gptq(4, ordered=False)),
    "gptq 2": ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"}, gptq(4, version=2)),
    "auto-round": (
        {"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq", "bits": 4},
        gptq(4),
    ),
    "auto-round with zeros": (
        {"quant_method": "auto-round", "packing_format": "auto_round"},
        gptq(4, version=2),
    ),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}, awq),
    "packed 4 bits": ({**COMPRESSED, "format": "pack-quantized"}, packed(4)),
    "packed 4 bits by rows": ({**COMPRESSED, "format": "pack-quantized"}, packed(4, 1)),
    "packed 8 bits": ({**COMPRESSED, "format": "pack-quantized"}, packed(8)),
    "packed with zeros": ({**COMPRESSED, "format": "pack-quantized"}, packed(4, symmetric=False)),
    "fp8 by rows": ({**COMPRESSED, "format": "float-quantized"}, by_rows),
    "fp8 whole": ({"quant_method": "modelopt", "quant_algo": "FP8"}, whole),
    "fp8 blocks": ({"quant_method": "fp8", "weight_block_size": [40, 40]}, blocks),
    "fp8 blocks with powers of two": (
        {"quant_method": "fp8", "weight_block_size": [40, 40], "scale_fmt": "ue8m0"},
        blocks,
    ),
    "int8 by rows": ({**COMPRESSED, "format": "int-quantized"}, bytes_by_rows),
    "int8 by groups with zeros": ({**COMPRESSED, "format": "int-quantized"}, bytes_with_zeros(2)),
    "int8 whole with a zero": ({**COMPRESSED, "format": "int-quantized"}, bytes_with_zeros(1, whole=True)),
    "gptq of several bits": ({"quant_method": "gptq", "bits": 4}, of_turns(gptq(4), gptq(8), gptq(2))),
    "packed in several bits": ({**COMPRESSED, "format": "pack-quantized"}, of_turns(packed(4), packed(8))),
    "packed with one scale": ({**COMPRESSED, "format": "pack-quantized"}, of_one_scale),
    "mxfp8": ({**COMPRESSED, "format": "mxfp8-quantized"}, eight_bits),
    "mxfp4": ({**COMPRESSED, "format": "mxfp4-pack-quantized"}, four_bits(group=32, by="powers")),
    "nvfp4": ({**COMPRESSED, "format": "nvfp4-pack-quantized"}, four_bits(group=16, by="divisor")),
    "nvfp4 of ModelOpt": (
        {"quant_method": "modelopt", "quant_algo": "NVFP4"},
        four_bits(group=16, by="factor"),
    ),
    "several bits of ModelOpt": (
        {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"},
        of_turns(by_rows, four_bits(group=16, by="factor")),
    ),
    "points of several bits": (
        {**COMPRESSED, "format": "mixed-precision"},
        of_turns(eight_bits, four_bits(group=32, by="powers"), by_rows),
    ),
    "bitsandbytes in wider words": (
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
        in_wider_words(nf4(nested=False)),
    ),
    "bitsandbytes int8": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, llm_int8),
    "bitsandbytes nf4": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, nf4(nested=False)),
    "bitsandbytes nested": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, nf4(nested=True)),
}


def write(path: Path, tensors: dict[str, Tensor]) -> None:
    header, data = {}, b""
    for name, (kind, array) in tensors.items():
        header[name] = {
            "dtype": kind,
            "shape": array.shape,
            "data_offsets": [len(data), len(data) + array.nbytes],
        }
        data += array.tobytes()
    encoded = json.dumps(header).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)


def written(folder: Path, source: Path, settings: dict[str, Any] | None, tensors: dict[str, Tensor]) -> Path:
    folder.mkdir()
    config = json.loads((source / "config.json").read_text())
    own = {} if settings is None else {"quantization_config": settings}
    (folder / "config.json").write_text(json.dumps({**config, **own}))
    write(folder / "model.safetensors", tensors)
    return folder


def logits(folder: Path, kind: str = "llama") -> mx.array:
    info = ModelInfo(id="m", kind="language", path=str(folder), architecture=kind)
    model, _ = load_weights(info, PLAN, lambda *_: None)
    return model(TOKENS)


def refusal(folder: Path) -> str:
    with pytest.raises(ServerError) as caught:
        logits(folder)
    return caught.value.report.message


@pytest.fixture(scope="module")
def source(tiny_models: TinyModels) -> Path:
    return tiny_models("llama")


def both(source: Path, folder: Path, name: str) -> tuple[Path, Path]:
    """The folder of a model whose matrices are packed, and of one with the numbers that they stand for."""
    settings, pack = FORMATS[name]
    tensors: dict[str, Tensor] = {}
    stand_for: dict[str, Tensor] = {}
    for tensor, array in load_file(source / "model.safetensors").items():
        if "_proj." not in tensor:
            tensors[tensor] = stand_for[tensor] = plain(array)
            continue
        found, numbers = pack(array)
        prefix = tensor.removesuffix("weight")
        tensors |= {prefix + leaf: each for leaf, each in found.items()}
        stand_for[tensor] = plain(numbers.astype(np.float32))
    packed = written(folder / "packed", source, settings, tensors)
    return packed, written(folder / "plain", source, None, stand_for)


@pytest.mark.parametrize("name", FORMATS)
def test_the_numbers_of_a_format_are_the_models(source: Path, tmp_path: Path, name: str) -> None:
    folder, unpacked = both(source, tmp_path, name)
    assert mx.allclose(logits(folder), logits(unpacked), atol=1e-4)


@pytest.mark.parametrize("name", ["gptq 4 bits", "packed with zeros", "mxfp4"])
def test_packed_experts_are_stacked_with_their_scales(
    tiny_models: TinyModels, tmp_path: Path, name: str
) -> None:
    source = tiny_models("qwen3_moe")
    settings, pack = FORMATS[name]
    tensors, stand_for = {}, {}
    for tensor, array in load_file(source / "model.safetensors").items():
        if ".switch_mlp." not in tensor:
            tensors[tensor] = stand_for[tensor] = plain(array)
            continue
        for number, each in enumerate(array):
            path = tensor.replace("switch_mlp", f"experts.{number}")
            found, numbers = pack(each)
            tensors |= {path.removesuffix("weight") + leaf: stored for leaf, stored in found.items()}
            stand_for[path] = plain(numbers.astype(np.float32))
    packed = written(tmp_path / "packed", source, settings, tensors)
    expected = logits(written(tmp_path / "plain", source, None, stand_for), "qwen3_moe")
    assert mx.allclose(logits(packed, "qwen3_moe"), expected, atol=1e-4)


def matrix_of(name: str, kind: str, module: str, rows: int) -> tuple[dict[str, mx.array], Floats]:
    """The arrays of a matrix, packed as a format says, for a type of models, and the numbers of its first rows."""
    settings, pack = FORMATS[name]
    tensors, numbers = pack(np.random.default_rng(0).normal(size=(96, 64)).astype(np.float32))
    arrays = {
        f"{module}.{leaf}": mx.from_fp8(mx.array(array)) if stored == "F8_E4M3" else mx.array(array)
        for leaf, (stored, array) in tensors.items()
    }
    for leaf, words in {"qweight": rows, "scales": rows, "qzeros": rows // 8}.items():
        if rows < len(numbers):
            arrays[f"{module}.{leaf}"] = arrays[f"{module}.{leaf}"][:, :words]
    return unquantised(arrays, {"model_type": kind, "quantization_config": settings}, mx.float32), numbers[
        :rows
    ]


OPENED = {"deepseek_v3": "model.layers.0.self_attn.kv_b_proj", "falcon_h1": "model.layers.0.mamba.in_proj"}


@pytest.mark.parametrize("kind", OPENED)
@pytest.mark.parametrize("name", ["awq", "packed with zeros", "mxfp4", "mxfp8"])
def test_what_a_class_takes_apart_is_unpacked(kind: str, name: str) -> None:
    found, numbers = matrix_of(name, kind, OPENED[kind], 96)
    assert np.allclose(found.pop(f"{OPENED[kind]}.weight"), numbers, atol=1e-3)
    assert not found


def test_the_zeros_of_a_matrix_need_not_fill_32_numbers() -> None:
    found, numbers = matrix_of("gptq 4 bits", "llama", "q_proj", 16)
    weight = mx.dequantize(*(found[f"q_proj.{leaf}"] for leaf in ("weight", "scales", "biases")), 32, 4)
    assert np.allclose(weight, numbers, atol=1e-3)


def test_settings_count_under_their_older_name(source: Path, tmp_path: Path) -> None:
    folder, unpacked = both(source, tmp_path, "int8 by rows")
    config = folder / "config.json"
    config.write_text(config.read_text().replace("quantization_config", "compression_config"))
    assert mx.allclose(logits(folder), logits(unpacked), atol=1e-4)


@pytest.mark.skipif(why_missing() is not None, reason=str(why_missing()))
@pytest.mark.parametrize("name", ["packed with zeros", "fp8 blocks"])
def test_the_kernels_compute_with_these_numbers(source: Path, tmp_path: Path, name: str) -> None:
    from pippin.engines.language.kernels.decoder import KernelDecoder  # only where the kernels are built

    folder, unpacked = both(source, tmp_path, name)
    info = ModelInfo(id="m", kind="language", path=str(folder), architecture="llama")
    plan = msgspec.structs.replace(PLAN, kernels=True)
    model, _ = load_weights(info, plan, lambda *_: None, kernel_threads=2)
    assert isinstance(model, KernelDecoder)
    assert mx.allclose(model(TOKENS, cache=make_prompt_cache(model)), logits(unpacked), atol=1e-3)


def test_fp8_numbers_without_scales_are_read_as_numbers(source: Path, tmp_path: Path) -> None:
    tensors: dict[str, Tensor] = {}
    stand_for: dict[str, Tensor] = {}
    for tensor, array in load_file(source / "model.safetensors").items():
        stored, numbers = fp8(array)
        tensors[tensor], stand_for[tensor] = stored, plain(numbers)
    expected = logits(written(tmp_path / "plain", source, None, stand_for))
    assert mx.array_equal(logits(written(tmp_path / "fp8", source, None, tensors)), expected)


def test_integers_without_scales_are_refused_by_name(source: Path, tmp_path: Path) -> None:
    tensors = {name: plain(array) for name, array in load_file(source / "model.safetensors").items()}
    tensor = "model.layers.0.self_attn.q_proj.weight"
    tensors[tensor] = plain((tensors[tensor][1] * 100).astype(np.int8))
    assert f"{tensor} holds integers (int8)" in refusal(written(tmp_path / "m", source, None, tensors))


def test_buffers_that_older_transformers_saved_are_left_out(tiny_models: TinyModels, tmp_path: Path) -> None:
    source = tiny_models("qwen3_moe")
    tensors = {name: plain(array) for name, array in load_file(source / "model.safetensors").items()}
    expected = logits(written(tmp_path / "plain", source, None, tensors), "qwen3_moe")
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = plain(np.ones(8, np.float32))
    assert mx.array_equal(logits(written(tmp_path / "m", source, None, tensors), "qwen3_moe"), expected)


def test_packed_arrays_that_no_settings_tell_of_are_refused_by_name(source: Path, tmp_path: Path) -> None:
    folder, _ = both(source, tmp_path, "gptq 4 bits")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": {"bits": 4}}))
    assert "qweight is quantised, and no quantization_config says by what" in refusal(folder)


@pytest.mark.parametrize(
    "settings",
    [
        {"quant_method": "aqlm"},
        {"quant_method": "hqq"},
        {"quant_method": "awq", "version": "gemv"},
        {"quant_method": "gptq", "checkpoint_format": "marlin"},
        {"quant_method": "gptq", "is_marlin_format": True},
        {"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"},
        {"quant_method": "auto-round", "packing_format": "auto_round:llm_compressor_nvfp4_e5m3"},
        {**COMPRESSED, "format": "marlin-24"},
        {**COMPRESSED, "transform_config": {"config_groups": {"u": {}}}},
    ],
    ids=str,
)
def test_other_methods_are_refused_by_name(source: Path, tmp_path: Path, settings: dict[str, Any]) -> None:
    tensors = {name: plain(array) for name, array in load_file(source / "model.safetensors").items()}
    message = refusal(written(tmp_path / "m", source, settings, tensors))
    assert settings["quant_method"] in message.lower()
    assert "mlx_lm.convert" in message
    assert "damaged" not in message
