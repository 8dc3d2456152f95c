"""Loads a model with its weights, in the dtype that `engines/device.py` decides on."""

import gc
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo
from pippin.core.published import find_json, mistaken
from pippin.core.safetensors import find_header, instead
from pippin.engines.base import LoadProgress
from pippin.engines.device import DevicePlan, evaluate_in_pieces, weights_too_large
from pippin.engines.language.kernels import ways
from pippin.engines.language.kernels.agreement import OtherAnswer
from pippin.engines.language.kv_cache.agreement import FAILURES
from pippin.engines.language.model.explaining import explain
from pippin.engines.language.model.gated_delta import compute_in_blocks
from pippin.engines.language.upstream.library import dequantize_model, load_model
from pippin.engines.language.upstream.mends import mend
from pippin.engines.language.upstream.stored import classes_in, refuse_bytes
from pippin.engines.language.vision import checkpoint
from pippin.engines.language.vision.model import VisionModel

log = logging.getLogger(__name__)

OFFLOAD_INDEX = "offload_index.json"
KERNELS_ALLOCATOR_CACHE = 64 * 2**20
"""Bytes of freed buffers that MLX keeps when the kernels compute a model; the kernels' own memory is not MLX's."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Which parts of a checkpoint are read, and by which library."""

    trust_remote_code: bool = False
    text_only: bool = False  # a model that takes media: by mlx-lm, without its encoders
    changed: Mapping[str, Any] = field(default_factory=dict)  # values for mlx-lm that replace config.json's
    aside: tuple[str, ...] = ()  # how the names of arrays begin that mlx-lm's model does not get


def load_weights(
    info: ModelInfo,
    plan: DevicePlan,
    progress: LoadProgress,
    reading: Reading = Reading(),
    *,
    kernel_threads: int | None = None,
    split: Callable[[nn.Module], None] | None = None,
) -> tuple[nn.Module, dict[str, Any]]:
    """The model, with every array evaluated, and its configuration. Raises `ServerError("load_failed")`.

    The kernels for CPUs compute a model that they know with so many threads; with None, they are not used. `split`
    removes the parts of other ranks before these are read.
    """
    folder = Path(info.path or "")
    _refuse_foreign_code(info, folder, reading.trust_remote_code)
    refuse_unreadable(info, folder)
    model, config = _read(info, folder, reading)
    on_kernels = False
    if plan.kernels and kernel_threads is not None and not isinstance(model, VisionModel):
        try:
            model, on_kernels = _put_on_kernels(model, plan, progress, info, kernel_threads)
        except OtherAnswer as error:
            # The kernels have taken its weights, so it is read again.
            log.warning("the model runs in float32, without the kernels for CPUs: %s", error)
            mx.set_cache_limit(plan.allocator_cache)
            model, config = _read(info, folder, reading)
    vars(model).pop("files", None)  # which are mapped
    if on_kernels:
        drop_unused_arrays()  # those of mlx-lm's model
    if plan.activations != "float32" and not on_kernels:
        log.warning("--cpu-activations %s changes nothing without the kernels", plan.activations)
    cast_weights(model, plan)
    if split is not None:
        split(model)
    _evaluate(model, plan, progress, info)
    return model, config


def _read(info: ModelInfo, folder: Path, reading: Reading) -> tuple[nn.Module, dict[str, Any]]:
    """The model, no array of it evaluated yet, and its configuration. Raises `ServerError("load_failed")`."""
    vision = not reading.text_only and checkpoint.is_vision(folder)
    load: Callable[..., Any] = partial(
        load_model, model_config=dict(reading.changed), get_model_classes=classes_in(folder, reading.aside)
    )
    if vision:
        load = checkpoint.load_model
    # Code of the folder that is trusted may end the process; a class of the library may not.
    ended = () if reading.trust_remote_code else (SystemExit,)
    try:
        found: tuple[nn.Module, dict[str, Any]] = load(
            folder, lazy=True, strict=True, trust_remote_code=reading.trust_remote_code
        )
        refuse_bytes(found[0])
        text = {**found[1], **(found[1].get("text_config") or {})}
        both_ways = text.get("use_bidirectional_attention") in (True, "all") or text.get("is_causal") is False
        # PaliGemma reads its prompts both ways.
        if both_ways and info.kind == "language" and found[1].get("model_type") != "paligemma":
            told = "use_bidirectional_attention true and is_causal false"
            raise ValueError(f"{told} are read with --model-kind embeddings alone, of models of text alone")
    except (*FAILURES, *ended) as error:
        refusal = ServerError("load_failed", explain(info, error, "mlx-vlm" if vision else "mlx-lm"))
        if not vision:
            raise refusal from error
        # mlx-lm converts such models without the weights of their encoders.
        try:
            found = _read(info, folder, replace(reading, text_only=True))
        except ServerError:
            raise refusal from error
        log.warning("the model is served for text only: %s", refusal.report.message)
    mend(found[0])
    if mx.default_device().type == mx.DeviceType.gpu:  # on a CPU single tokens are as fast
        compute_in_blocks()
    return found


def _put_on_kernels(
    model: nn.Module, plan: DevicePlan, progress: LoadProgress, info: ModelInfo, threads: int
) -> tuple[nn.Module, bool]:
    """The model on the kernels, whole or in parts, with its weights as they are stored, and True; the model unchanged
    and False if the kernels cannot compute it. Raises `OtherAnswer` if their result differs from that of mlx-lm's
    model, which cannot be used any more then."""
    way = ways.way_of(model)
    if way.means == "float32":
        log.info("the model runs in float32, without the kernels for CPUs: %s", way.reason)
        return model, False
    total = weight_bytes(model)
    if total > plan.memory_limit:
        raise weights_too_large(total, plan.memory_limit, info.id)
    progress(0, total, "weights")
    # A layer's arrays are freed once the kernels have its weights.
    mx.set_cache_limit(min(plan.allocator_cache, KERNELS_ALLOCATOR_CACHE))
    try:
        found, used = ways.put_on(model, way, threads, activations=plan.activations)
    except ValueError as error:
        message = f"The weights of {info.id!r} cannot be used: {error}. Download it again."
        raise ServerError("load_failed", message) from error
    progress(total, total, "weights")
    because = "" if way.reason is None else f": {way.reason}"
    rounded = "" if plan.activations == "float32" else f", its activations rounded to {plan.activations}"
    log.info("the model runs on the kernels for CPUs, by %s, with %s%s%s", way.means, used, rounded, because)
    return found, True


def drop_unused_arrays() -> None:
    """Return the memory of unreachable arrays to the allocator."""
    gc.collect()  # modules that mlx-lm made, and the caches of trials, refer to each other
    mx.clear_cache()


def keep_at_hand(model: nn.Module) -> None:
    """Have Python find the modules of a loaded model at its first look. MLX keeps them as items of a dictionary, where
    an attribute is looked for last, after an error has been made and dropped: 2 µs each in Python 3.11 (measured),
    hundreds of times a step. None of them may be replaced afterwards."""
    for module in model.modules():
        for name, held in module.items():
            if any(isinstance(each, nn.Module) for each in (held if isinstance(held, list) else [held])):
                vars(module)[name] = held


def _refuse_foreign_code(info: ModelInfo, folder: Path, trusted: bool) -> None:
    """Raises `ServerError` for a folder without a usable config.json, or with model code that is not trusted."""
    config = find_json(folder / "config.json") or {}
    if not isinstance(config.get("model_type"), str):
        raise ServerError("load_failed", f"The config.json of {info.id!r} is missing or names no model_type.")
    # An `auto_map` alone is harmless: it is code for another library, which is never run here.
    if config.get("model_file") is not None and not trusted:
        raise ServerError(
            "load_failed",
            f"The model {info.id!r} brings Python code ({config['model_file']!r}) that builds it, which is not run "
            "unless you start the server with --trust-remote-code. Do so only if you trust its author.",
        )


def refuse_unreadable(info: ModelInfo, folder: Path) -> None:
    """Raises `ServerError` for a folder whose weights are missing, incomplete or cut off."""
    if (folder / OFFLOAD_INDEX).is_file():
        message = (
            f"The model {info.id!r} was repacked by mlx_vlm.moe_offload, so that its experts would be read from the "
            "disk at each step: use the checkpoint that it was made from."
        )
        raise ServerError("load_failed", message)
    weights = sorted(folder.glob("model*.safetensors"))
    if not weights:
        way = instead(folder) or "If its repository is gated, accept its terms, log in and download it again."
        raise ServerError("load_failed", f"The model {info.id!r} has no safetensors weights: {way}")
    for path in weights:
        if (what := mistaken(path) or _broken(path)) is not None:
            raise ServerError("load_failed", f"{path.name} of the model {info.id!r} {what}.")


def _broken(path: Path) -> str | None:
    """What is wrong with a safetensors file by its header, as the end of a sentence."""
    header = find_header(path)
    size = path.stat().st_size
    if header is None:
        return "has a damaged header: fetch it again"
    if size < header.file_size:
        return f"is cut off: {size} of {header.file_size} bytes are there. Fetch it again"
    return header.fault


def cast_weights(model: nn.Module, plan: DevicePlan) -> None:
    """Cast, and dequantize if the plan says so. A widening cast includes the parameters that the model excepts."""
    if plan.run_type is None:
        return
    wanted = getattr(mx, plan.run_type)
    keep: Callable[[str], bool] = getattr(model, "cast_predicate", lambda _: True)
    widening = wanted == mx.float32

    def cast() -> None:
        flat = tree_flatten(model.parameters())
        changed = [
            (name, array.astype(wanted))
            for name, array in flat
            if mx.issubdtype(array.dtype, mx.floating) and array.dtype != wanted and (widening or keep(name))
        ]
        model.load_weights(changed, strict=False)

    # Scales are cast first, so that weights are dequantized in the wanted dtype and not rounded twice.
    cast()
    if plan.dequantize:
        dequantize_model(model)
        cast()


def _evaluate(model: nn.Module, plan: DevicePlan, progress: LoadProgress, info: ModelInfo) -> None:
    arrays = [array for _, array in tree_flatten(model.parameters())]
    total = sum(array.nbytes for array in arrays)
    if total > plan.memory_limit:
        raise weights_too_large(total, plan.memory_limit, info.id)
    if not total:  # the kernels hold them all
        return
    progress(0, total, "weights")
    for done in evaluate_in_pieces(arrays):
        progress(done, total, "weights")


def weight_bytes(model: nn.Module) -> int:
    """The bytes of all parameters."""
    arrays: int = sum(array.nbytes for _, array in tree_flatten(model.parameters()))
    # Some layers hold weights that are not MLX arrays, and report their bytes.
    aside = sum(int(getattr(module, "weight_bytes", 0)) for _, module in model.named_modules())
    return arrays + aside
