"""Keeps the layers that predict tokens further ahead (multi-token prediction), which mlx-lm and mlx-vlm drop.

mlx-vlm splits off the heads that it knows, each as a drafter in a folder of its own. The layer after a model's last one
(DeepSeek V3, GLM 4.5) is written in a file of its own, under the checkpoint's names.
"""

import importlib.util
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import mlx.core as mx

from pippin.core.errands import Quantization
from pippin.engines.language.drafters import layers
from pippin.engines.language.drafters.loading import PREDICTION_HEADS, SPLIT_OFF

LAYER: Final = "mtp.safetensors"
"""The file of a head that is a layer. Loaders of `model*.safetensors` do not see it."""
MATRIX: Final = re.compile(r"(?<!\.gate)\.weight$")
"""Names of matrices that may be quantised: all but a router's, which chooses experts."""
EXACT: Final = re.compile(r"correction_bias$")
"""Vectors in float32 beside other types: what is added to a router's scores."""


def keep(
    folder: Path,
    target: Path,
    config: Mapping[str, Any],
    wanted: Quantization | None,
    dtype: mx.Dtype | None,
) -> bool:
    """Write a checkpoint's head into the folder of its conversion, quantised as the model is; whether there is one. A
    head that is quantised already stays as it is."""
    if config.get("model_type") in layers.FAMILIES:
        return _keep_layer(folder, target, config, wanted, dtype)
    if (folder / SPLIT_OFF).is_dir():
        shutil.copytree(folder / SPLIT_OFF, target / SPLIT_OFF)
        return True
    if importlib.util.find_spec("mlx_vlm") is None:
        return False
    from mlx_vlm.speculative.drafters.mtp_split import detect_mtp_splitter

    splitter = detect_mtp_splitter(folder)
    if splitter is None or splitter.output_model_type not in PREDICTION_HEADS:
        return False
    asked = (
        {}
        if wanted is None
        else {"q_bits": wanted.bits, "q_group_size": wanted.group_size, "q_mode": wanted.mode}
    )
    splitter.split(str(folder), str(target / SPLIT_OFF), **asked)
    return True


def _keep_layer(
    folder: Path,
    target: Path,
    config: Mapping[str, Any],
    wanted: Quantization | None,
    dtype: mx.Dtype | None,
) -> bool:
    found, mode = layers.read_layer(folder, config)
    if not found:
        return False
    matrices = (array for array in found.values() if array.ndim > 1)
    if all(mx.issubdtype(array.dtype, mx.floating) for array in matrices):
        found = {name: _cast(name, array, dtype) for name, array in found.items()}
        found, mode = (found, mode) if wanted is None else (_quantized(found, wanted), wanted.mode)
    prefix = layers.prefix_of(config)
    written = {prefix + name: array for name, array in found.items()}
    mx.save_safetensors(str(target / LAYER), written, metadata={"format": "mlx", "mode": mode})
    return True


def _cast(name: str, array: mx.array, dtype: mx.Dtype | None) -> mx.array:
    return array if dtype is None or EXACT.search(name) else array.astype(dtype)


def _quantized(arrays: layers.Weights, wanted: Quantization) -> layers.Weights:
    written: layers.Weights = {}
    for name, array in arrays.items():
        fits = array.ndim >= 2 and array.shape[-1] % wanted.group_size == 0
        if not fits or MATRIX.search(name) is None:
            written[name] = array
            continue
        parts = mx.quantize(array, group_size=wanted.group_size, bits=wanted.bits, mode=wanted.mode)
        stem = name.removesuffix(".weight")
        written.update(zip((name, f"{stem}.scales", f"{stem}.biases"), parts, strict=False))
    return written
