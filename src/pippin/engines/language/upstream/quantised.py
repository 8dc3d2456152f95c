"""Arrays that other tools have quantised, as MLX holds them: packed as its own where that is the same numbers, else
unpacked.

A method has a function here, or is left to the libraries, or is refused by its name.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from pippin.core.published import table
from pippin.engines.language.configuration import Config
from pippin.engines.language.upstream.library import infer_quant_config

Arrays = dict[str, mx.array]

LEFT_TO_LIBRARIES: Final = ("bitnet", "mxfp4", "mxfp8")
"""What mlx-lm and mlx-vlm read by themselves."""

LEFT_FORMATS: Final = ("nvfp4-pack-quantized",)
"""The same of compressed-tensors and ModelOpt for mlx-vlm, and unpacked for mlx-lm, whose layers have no scale of a
whole matrix."""

SETTINGS: Final = ("quantization", "quantization_config")
"""Where configurations tell how arrays are packed."""

NONE: Final = {"quant_method": "none"}
"""In place of the settings of weights that are unpacked. The libraries look elsewhere where there are none."""

AGAIN: Final = "take the checkpoint that it was made from, and quantise it: mlx_lm.convert --hf-path NAME -q"
"""The way out for weights that can't be unpacked."""

BLOCK: Final = 128  # rows and columns of a block with one scale
GROUPS: Final = (128, 64, 32)
MICRO: Final = 32  # numbers with one scale that is a power of two
BITS: Final = (2, 3, 4, 5, 6, 8)
FP4: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # and the same below zero
AWQ_ORDER: Final = (0, 4, 1, 5, 2, 6, 3, 7)  # of the eight numbers of a word
OF_MODELOPT: Final = "FP8 FP8_PER_CHANNEL_PER_TOKEN MIXED_PRECISION MXFP8 NVFP4".split()
"""The algorithms of ModelOpt that leave no more than scales beside a matrix."""
PACKED: Final = (".qweight", ".weight_packed", ".weight_scale", ".weight_scale_inv", ".SCB", ".absmax")
"""What packed matrices have in their files, by the ends of names."""
OPENED: Final = ("falcon_h1", "gpt2")
"""Architectures whose classes multiply or transpose stored matrices, which must be unpacked for it."""
SPLIT: Final = "kv_b_proj."
"""The end of the matrices that classes of latent attention take apart, and pack anew where they are packed."""
BESIDE: Final = (
    "input_scale input_global_scale activation_scale output_scale input_zero_point k_scale v_scale".split()
)
"""Scales of activations, which are not rounded here."""


def unquantised(arrays: Arrays, config: Config, wide: mx.Dtype) -> Arrays:
    """The arrays of a checkpoint, which `left_to_libraries` does not leave, with the settings in its configuration to
    match; `wide` is the type of unpacked ones and of scales. `arrays` have FP8 numbers decoded. Raises `ValueError` for
    a method that is not read here."""
    settings = _settings(config)
    if "quant_method" not in settings:
        if packed := next((name for name in arrays if name.endswith(PACKED)), None):
            raise ValueError(f"{packed} is quantised, and no quantization_config says by what: {AGAIN}")
        return arrays
    method, form = str(settings["quant_method"]), _form(settings)
    if (read := METHODS.get(form)) is None:
        named = method if form == method else f"{method} ({form})"
        raise ValueError(f"its weights are quantised by {named}, which is not read here: {AGAIN}")
    opened = "" if config.get("model_type") in OPENED else SPLIT
    return _Opened(arrays, settings, wide, opened).all(read, config)


def _form(settings: Mapping[str, Any]) -> str:
    """The name in `METHODS` of a method, or of what its settings say of it."""
    method, algorithm = str(settings["quant_method"]), settings.get("quant_algo", "FP8")
    if method.endswith("auto-round"):
        packing = str(settings.get("packing_format", "auto_gptq")).removeprefix("auto_round:")
        # Its own form is that of GPTQ with zeros as they are.
        return "gptq_v2" if packing in ("auto_round", "gptqmodel") else packing.removeprefix("auto_")
    if method == "gptq":
        return "marlin" if settings.get("is_marlin_format") else settings.get("checkpoint_format") or method
    return str(algorithm) if method == "modelopt" and algorithm not in OF_MODELOPT else method


def settle_packed(arrays: Arrays, config: Config) -> None:
    """Have `config` tell of arrays in MLX's own form where the libraries look: some files tell in another place, or of
    single modules alone, or nowhere."""
    places = (config, config.get("text_config") or {})
    found = [own for part in places for name in SETTINGS if isinstance(own := part.get(name), dict)]
    told = next((own for own in found if "bits" in own and "quant_method" not in own), None)
    packed = (name for name in arrays if name.endswith(".scales"))
    if told is not None or any(f"{name.removesuffix('scales')}weight" in arrays for name in packed):
        # The bits of each module are told by its arrays.
        config["quantization"] = {"group_size": 64, "bits": 4, **(told or {})}


def settle_bits(model: nn.Module, arrays: Arrays, config: Config) -> None:
    """Have `config` tell the bits that the arrays of each module are packed in. What it says of single modules may
    name them as they were stored, which classes change, and classes make modules that no file names.

    Raises `ValueError` for numbers that MLX does not pack so.
    """
    settings = config.get("quantization")
    if not isinstance(settings, dict):
        return
    for path, module in model.named_modules():
        if hasattr(module, "to_quantized") and isinstance(module.get("weight"), mx.array):
            packed = f"{path}.scales" in arrays
            settings[path] = infer_quant_config(path, module, arrays) if packed else False


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    for part in (config, table(config.get("text_config"))):
        found = part.get("quantization_config") or part.get("compression_config")
        if isinstance(found, dict) and found:
            inner = found.get("quantization")  # as in ModelOpt's own file
            found = inner if isinstance(inner, dict) else found
            return {"quant_method": "modelopt", **found} if "quant_algo" in found else found
    return {}


def left_to_libraries(config: Mapping[str, Any], *, vision: bool) -> bool:
    """Whether mlx-lm, or mlx-vlm for `vision`, gets the arrays as they are stored."""
    settings = _settings(config)
    method, algorithm = settings.get("quant_method"), settings.get("quant_algo")
    # DeepSeek V4's classes unpack by themselves, and the libraries unpack blocks as small as MLX's groups.
    small = settings.get("weight_block_size") == [MICRO, MICRO]
    own = small or "deepseek_v4" in str(config.get("model_type"))
    powers = own and settings.get("scale_fmt") == "ue8m0"
    if "quantization" in config or method in LEFT_TO_LIBRARIES or powers:
        return True
    return vision and (algorithm == "NVFP4" or settings.get("format") in LEFT_FORMATS)


class _Opened:
    """The arrays of one checkpoint while they are read."""

    def __init__(self, arrays: Arrays, settings: Mapping[str, Any], wide: mx.Dtype, opened: str) -> None:
        """`opened`: how the names of modules end that are unpacked."""
        self.arrays, self.settings, self.wide, self.opened = dict(arrays), settings, wide, opened

    def all(self, read: "Callable[[_Opened], None]", config: Config) -> Arrays:
        read(self)
        self._drop(*BESIDE)
        config["quantization_config"] = NONE
        if not any(name.endswith(".scales") for name in self.arrays):
            return self.arrays
        return {
            name: array.astype(self.wide) if mx.issubdtype(array.dtype, mx.floating) else array
            for name, array in self.arrays.items()
        }

    def taken(self, *names: str) -> Iterator[tuple[str, list[mx.array]]]:
        """The prefix and the arrays of these names of each module that has the first. Raises `ValueError` where one of
        the others is missing."""
        found = [name.removesuffix(names[0]) for name in self.arrays if name.endswith("." + names[0])]
        for prefix in found:
            if not all(prefix + name in self.arrays for name in names):
                raise ValueError(f"{prefix}{names[0]} has no {' or '.join(names[1:])}")
            yield prefix, [self.arrays.pop(prefix + name) for name in names]

    def _drop(self, *leaves: str) -> None:
        self.arrays = {
            name: array for name, array in self.arrays.items() if name.rpartition(".")[2] not in leaves
        }

    def keep(self, prefix: str, numbers: mx.array, scales: mx.array) -> bool:
        """Whether numbers with a power of two for 32 each stay packed, as MLX has them, too."""
        if prefix.endswith(self.opened):
            return False
        self.arrays |= {f"{prefix}weight": _words(numbers), f"{prefix}scales": scales}
        return True

    def put(
        self,
        prefix: str,
        packed: mx.array,
        bits: int,
        scales: mx.array,
        zeros: mx.array,
        index: mx.array | None = None,
    ) -> None:
        """Numbers packed as MLX does [out, words], with a scale and a zero for each group [out, groups]. `index`: the
        group of each column, None where they are in order."""
        if bits not in BITS:
            raise ValueError(f"{prefix}weight is quantised in {bits} bits, which MLX does not have")
        scales, zeros = scales.astype(mx.float32), zeros.astype(mx.float32)
        columns = _columns(packed, bits)
        index = None if index is None or _is_in_order(index, scales.shape[1]) else index.astype(mx.int32)
        own = columns // scales.shape[1]
        group = next((each for each in GROUPS if own % each == 0), None)
        if index is not None or group is None or columns % scales.shape[1] or prefix.endswith(self.opened):
            places = mx.arange(columns) // own if index is None else index
            numbers = unpacked(packed, bits)
            found = (numbers - zeros[:, places]) * scales[:, places]
            self.arrays[f"{prefix}weight"] = found.astype(self.wide)
            return
        scales, zeros = (mx.repeat(each, own // group, axis=1) for each in (scales, zeros))
        self.arrays[f"{prefix}weight"] = packed
        self.arrays[f"{prefix}scales"] = scales.astype(self.wide)
        self.arrays[f"{prefix}biases"] = (-zeros * scales).astype(self.wide)


def unpacked(words: mx.array, bits: int) -> mx.array:
    """The numbers [..., n] in words of 32 bits, the lowest bits first, in float32."""
    count = _columns(words, bits)
    rows = mx.pad(words.reshape(-1, words.shape[-1]), [(0, 0), (0, -words.shape[-1] % bits)])
    ones = mx.ones((rows.shape[0], rows.shape[1] // bits))
    found = mx.dequantize(rows, ones, mx.zeros_like(ones), group_size=32, bits=bits)
    return found[:, :count].reshape(*words.shape[:-1], count)


def _columns(words: mx.array, bits: int) -> int:
    return int(words.shape[-1]) * 32 // bits


def _words(array: mx.array) -> mx.array:
    return mx.contiguous(array).view(mx.uint32)


def _powers(exponents: mx.array) -> mx.array:
    return mx.power(2.0, exponents.astype(mx.float32) - 127)


def _is_in_order(index: mx.array, groups: int) -> bool:
    found = np.asarray(index)
    return bool((found == np.arange(found.size) * groups // found.size).all())


def _spread(found: mx.array, shape: tuple[int, ...], block: Sequence[int] = (1, 1)) -> mx.array:
    """Scales or zeros, one, one for each row, or one for each block, for each number of a matrix of this shape
    [..., rows, columns], in float32."""
    found = found.astype(mx.float32)
    if found.size == 1:
        return found.reshape(())
    if found.ndim == len(shape) - 1:
        found = found[..., None]
    for axis, size in zip((-2, -1), block, strict=True):
        count, wanted = found.shape[axis], shape[axis]
        each = size if count == -(-wanted // size) else -(-wanted // count)
        found = mx.take(mx.repeat(found, each, axis=axis), mx.arange(wanted), axis=axis)
    return found


def _fp8(opened: _Opened) -> None:
    """Scales for blocks, rows or whole matrices, by the name that DeepSeek gave them or another."""
    # ModelOpt's numbers of 4 bits have scales of scales.
    for prefix, (scale, scales) in opened.taken("weight_scale_2", "weight_scale"):
        _fp4(opened, prefix, opened.arrays[f"{prefix}weight"], scales, scale)
    block = opened.settings.get("weight_block_size") or (BLOCK, BLOCK)
    for suffix in ("weight_scale_inv", "weight_scale", "gate_up_proj_scale_inv", "down_proj_scale_inv"):
        own = suffix.removesuffix("_inv").removesuffix("_scale")
        for prefix, (scales,) in opened.taken(suffix):
            if (weight := opened.arrays.get(prefix + own)) is None:
                continue
            if scales.dtype == mx.uint8:
                if scales.size * MICRO == weight.size and opened.keep(prefix, mx.to_fp8(weight), scales):
                    continue
                scales = _powers(scales)
            wide = weight.astype(mx.float32) * _spread(scales, weight.shape, block)
            opened.arrays[prefix + own] = wide.astype(opened.wide)


def _compressed(opened: _Opened) -> None:
    sparse, turned = (opened.settings.get(name) or {} for name in ("sparsity_config", "transform_config"))
    thinned = opened.settings.get("format") == "marlin-24" or sparse.get("format", "dense") != "dense"
    if thinned or turned.get("config_groups"):
        what = "sparse" if thinned else "rotated (transform_config)"
        raise ValueError(f"its weights are {what} (compressed-tensors), which is not read here: {AGAIN}")
    for prefix, (words, scales) in opened.taken("weight_packed", "weight_scale"):
        if words.dtype == mx.uint8:
            scale = opened.arrays.pop(f"{prefix}weight_global_scale", None)
            _fp4(opened, prefix, words, scales, 1.0 if scale is None else 1 / scale)
            continue
        zeros, index = (
            opened.arrays.pop(f"{prefix}weight_zero_point", None),
            opened.arrays.pop(f"{prefix}weight_g_idx", None),
        )
        shape = opened.arrays.pop(f"{prefix}weight_shape", None)
        bits = 4 if shape is None else words.shape[-1] * 32 // int(np.asarray(shape)[-1])
        scales = mx.broadcast_to(scales.reshape(1, 1), (words.shape[0], 1)) if scales.size == 1 else scales
        middle = mx.full(scales.shape, float(1 << (bits - 1)))
        offsets = middle if zeros is None else unpacked(_words(zeros.T), bits)[:, : scales.shape[0]].T
        opened.put(prefix, _words(words), bits, scales, offsets, index)
    for prefix, (zeros,) in opened.taken("weight_zero_point"):
        if (name := f"{prefix}weight") in opened.arrays:
            weight = opened.arrays[name].astype(mx.float32)
            opened.arrays[name] = weight - _spread(zeros, weight.shape)
    _fp8(opened)


def _fp4(opened: _Opened, prefix: str, words: mx.array, scales: mx.array, factor: mx.array | float) -> None:
    """A matrix of two numbers a byte, the lower half first: packed as it is where its scales are powers of two."""
    if words.shape[-1] * 2 != scales.shape[-1] * (MICRO if scales.dtype == mx.uint8 else MICRO // 2):
        raise ValueError(f"its weights are {opened.settings.get('format')}, which is not read here: {AGAIN}")
    if scales.dtype == mx.uint8:
        if opened.keep(prefix, words, scales):
            return
        scales = _powers(scales)
    points = mx.array([*FP4, *(-each for each in FP4)])
    numbers = points[mx.stack([words & 15, words >> 4], axis=-1).reshape(*words.shape[:-1], -1)]
    found = numbers * _spread(scales, numbers.shape) * factor
    opened.arrays[f"{prefix}weight"] = found.astype(opened.wide)


def _gptq(opened: _Opened, above: int = 1) -> None:
    for prefix, (words, zeros, scales) in opened.taken("qweight", "qzeros", "scales"):
        # Some modules may have other bits than the settings say of most.
        bits = zeros.shape[1] * 32 // scales.shape[1]
        offsets = unpacked(_words(zeros), bits)[:, : scales.shape[1]] + above
        index = opened.arrays.pop(f"{prefix}g_idx", None)
        opened.put(prefix, _words(words.T), bits, scales.T, offsets.T, index)


def _awq(opened: _Opened) -> None:
    version, bits = str(opened.settings.get("version", "gemm")).lower(), opened.settings.get("bits") or 4
    if version != "gemm" or bits != 4:
        what = f"as {version} of {bits} bits, and only gemm of 4 bits is read here"
        raise ValueError(f"its weights are quantised by AWQ {what}: {AGAIN}")
    shifts = mx.array(AWQ_ORDER, dtype=mx.uint32) * 4

    def numbers(words: mx.array) -> mx.array:
        return ((_words(words)[..., None] >> shifts) & 15).reshape(words.shape[0], -1)

    for prefix, (words, zeros, scales) in opened.taken("qweight", "qzeros", "scales"):
        rows = numbers(words).T
        packed = (rows.reshape(rows.shape[0], -1, 8) << (mx.arange(8, dtype=mx.uint32) * 4)).sum(axis=-1)
        opened.put(prefix, packed.astype(mx.uint32), 4, scales.T, numbers(zeros).T)


def _bitsandbytes(opened: _Opened) -> None:
    for kind in ("nf4", "fp4"):
        for prefix, (state,) in opened.taken(f"weight.quant_state.bitsandbytes__{kind}"):
            told = json.loads(np.asarray(state).tobytes())
            opened.arrays[f"{prefix}weight"] = _four_bits(opened, f"{prefix}weight", told)
    for prefix, (scales,) in opened.taken("SCB"):
        if (name := f"{prefix}weight") in opened.arrays:
            numbers = opened.arrays[name].astype(mx.float32)
            opened.arrays[name] = (numbers * (scales.astype(mx.float32) / 127)[:, None]).astype(opened.wide)
    opened._drop("weight_format")


def _four_bits(opened: _Opened, name: str, told: Mapping[str, Any]) -> mx.array:
    """A matrix of bitsandbytes: a table's numbers, the higher half of a byte first, times the largest of each block."""
    words, table, largest = (opened.arrays.pop(name + leaf) for leaf in ("", ".quant_map", ".absmax"))
    if (inner := opened.arrays.pop(f"{name}.nested_quant_map", None)) is not None:
        outer = opened.arrays.pop(f"{name}.nested_absmax")
        sizes = mx.repeat(outer, told["nested_blocksize"])[: largest.size]
        largest = inner[largest.reshape(-1)] * sizes + told["nested_offset"]
    flat = mx.contiguous(words).view(mx.uint8).reshape(-1)  # which may be stored as others
    numbers = table[mx.stack([flat >> 4, flat & 15], axis=-1).reshape(-1)]
    count = int(np.prod(told["shape"]))
    found = numbers[:count] * mx.repeat(largest.reshape(-1), told["blocksize"])[:count]
    return found.reshape(told["shape"]).astype(opened.wide)


METHODS: Final[dict[str, Callable[[_Opened], None]]] = {
    "fp8": _fp8,
    "fbgemm_fp8": _fp8,
    "modelopt": _fp8,
    "compressed-tensors": _compressed,
    "gptq": _gptq,
    "gptq_v2": partial(_gptq, above=0),
    "awq": _awq,
    "bitsandbytes": _bitsandbytes,
}
