"""One conversion: load lazily, cast, quantise, and write shard by shard into a folder that appears when it is
complete."""

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map, tree_map_with_path
from mlx_lm.utils import (
    dequantize_model,
    get_total_parameters,
    load_model,
    make_shards,
    quantize_model,
    save_config,
)

from pippin.config.errors import install_command
from pippin.config.repacked import is_repacked
from pippin.core.errands import Conversion, Converted, Quantization, Step
from pippin.core.errors import ServerError
from pippin.engines.language.conversion import draft_heads
from pippin.engines.language.upstream import reading
from pippin.engines.language.upstream.stored import classes_in
from pippin.engines.language.vision import checkpoint

SHARD_GB: Final = 1
"""GiB of a weight file. A shard is held in memory until it is written, so this bounds a conversion's memory."""

WEIGHTS: Final = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".npz", ".onnx", ".h5", ".msgpack")
WRITTEN: Final = ("config.json", "model.safetensors.index.json", "hf_quant_config.json")
"""Files that the conversion writes anew, or that would be wrong beside its result."""

Tell = Callable[[Step], None]


@dataclass(frozen=True)
class Checkpoint:
    """A model whose weights are not read yet, and its configuration. `library` loaded it."""

    folder: Path
    model: nn.Module
    config: dict[str, Any]
    library: "Library"

    @property
    def packed(self) -> dict[str, Any] | None:
        """How its matrices are packed already, if they are."""
        found = self.config.get("quantization")
        return found if isinstance(found, dict) else None


@dataclass(frozen=True)
class Library:
    """The functions of mlx-lm, or the same functions of mlx-vlm for a model that takes media."""

    name: str
    load: Callable[[Path], tuple[nn.Module, dict[str, Any]]]
    quantize: Callable[..., tuple[nn.Module, dict[str, Any]]]
    dequantize: Callable[[nn.Module], nn.Module]
    recipe: Callable[[str, nn.Module, int], Any]
    quantizes: Callable[[str], bool]  # whether the matrices of this module may be packed
    keeps_encoders: bool


def convert(folder: Path, asked: Conversion, tell: Tell) -> Converted:
    """Raises `ServerError` for a model that the libraries cannot load or quantise as asked."""
    if is_repacked(folder):
        message = "mlx_vlm.moe_offload repacked this model: convert the checkpoint that it was made from."
        raise ServerError("unsupported", message)
    library = _vision_library() if checkpoint.is_vision(folder) else _text_library()
    try:
        source = Checkpoint(folder, *library.load(folder), library)
        if library.name == "mlx-lm" and checkpoint.names_media(source.config) and not checkpoint.has_extra():
            raise ServerError(
                "unsupported",
                f"This model takes media, and its encoders would be lost without mlx-vlm: {install_command('vision')}",
            )
        model, config = _prepared(source, asked)
    except (ValueError, KeyError, TypeError, AttributeError, OSError, RuntimeError) as error:
        raise ServerError(
            "load_failed",
            f"{library.name} cannot convert this model: {type(error).__name__}: {str(error)[:300]}",
        ) from error
    with _appearing(Path(asked.target)) as target:
        size, bits = _write_model(target, model, tell)
        dtype = _dtype(asked, source.config)
        drafts = draft_heads.keep(folder, target, source.config, asked.quantization, dtype)
        save_config(dict(config), target / "config.json", keep_vision_config=library.keeps_encoders)
        _copy_the_rest(folder, target)
    return Converted(size=size, bits_per_weight=bits, has_draft_head=drafts)


def _text_library() -> Library:
    from mlx_lm.convert import mixed_quant_predicate_builder

    return Library(
        name="mlx-lm",
        load=lambda folder: load_model(folder, lazy=True, get_model_classes=classes_in(folder)),
        quantize=quantize_model,
        dequantize=dequantize_model,
        recipe=mixed_quant_predicate_builder,
        quantizes=lambda _: True,
        keeps_encoders=False,
    )


def _vision_library() -> Library:
    from mlx_vlm import quant_utils
    from mlx_vlm.convert import mixed_quant_predicate_builder
    from mlx_vlm.utils import skip_multimodal_module

    def recipe(name: str, model: nn.Module, group_size: int) -> Any:
        if group_size != 64:
            raise ServerError(
                "unsupported", "mlx-vlm's mixed recipes have groups of 64: leave --group-size out."
            )
        return mixed_quant_predicate_builder(name, model)

    return Library(
        name="mlx-vlm",
        load=lambda folder: (reading.load_model(folder, lazy=True), checkpoint.read_config(folder)),
        quantize=quant_utils.quantize_model,
        dequantize=quant_utils.dequantize_model,
        recipe=recipe,
        quantizes=lambda path: not skip_multimodal_module(path),
        keeps_encoders=True,
    )


def _prepared(source: Checkpoint, asked: Conversion) -> tuple[nn.Module, dict[str, Any]]:
    """The model as it is to be written, and its configuration; nothing is computed yet."""
    model, config, library = source.model, dict(source.config), source.library
    if source.packed is not None:
        _refuse_the_same(source.packed, asked.quantization)
        model = library.dequantize(model)
    config.pop("quantization", None)
    config.pop("quantization_config", None)
    _cast(model, _dtype(asked, config))
    if asked.dtype is not None:
        for part in (config, config.get("text_config")):
            if isinstance(part, dict):
                part.update({name: asked.dtype for name in ("dtype", "torch_dtype") if name in part})
    wanted = asked.quantization
    if wanted is None:
        return model, config
    return library.quantize(
        model,
        config,
        wanted.group_size,
        wanted.bits,
        mode=wanted.mode,
        quant_predicate=_predicate(library, model, wanted),
    )


def _refuse_the_same(packed: dict[str, Any], wanted: Quantization | None) -> None:
    if wanted is None or wanted.recipe is not None:
        return
    found = (packed.get("bits"), packed.get("group_size"), packed.get("mode", "affine"))
    mixed = any(isinstance(value, dict) for value in packed.values())
    if found == (wanted.bits, wanted.group_size, wanted.mode) and not mixed:
        raise ServerError(
            "conflict",
            f"This model has {wanted.bits} bits in groups of {wanted.group_size} already. Take another --bits or "
            "--group-size, or `--dtype bfloat16` to unpack it.",
        )


def _predicate(library: Library, model: nn.Module, wanted: Quantization) -> Callable[[str, nn.Module], Any]:
    """How each module is quantised, if at all: by the recipe, else by the architecture itself (routers keep more
    bits)."""
    if wanted.recipe is not None:
        chosen = library.recipe("mixed_" + wanted.recipe.replace("-", "_"), model, wanted.group_size)
    else:
        chosen = getattr(model, "quant_predicate", None)

    def decide(path: str, module: nn.Module) -> Any:
        if not library.quantizes(path):
            return False
        return True if chosen is None else chosen(path, module)

    return decide


def _dtype(asked: Conversion, config: dict[str, Any]) -> mx.Dtype | None:
    """The dtype of scales and of weights that are not packed; None leaves each array in its own."""
    text = config.get("text_config")
    parts = (config, text if isinstance(text, dict) else {})
    named = asked.dtype or next(
        (found for part in parts for name in ("torch_dtype", "dtype") if (found := part.get(name))), None
    )
    known = {"float16": mx.float16, "bfloat16": mx.bfloat16, "float32": mx.float32}
    return known.get(str(named).removeprefix("torch."))


def _cast(model: nn.Module, dtype: mx.Dtype | None) -> None:
    if dtype is None:
        return
    may_be_cast: Callable[[str], bool] = getattr(model, "cast_predicate", lambda _: True)

    def cast(path: str, array: mx.array) -> mx.array:
        return array.astype(dtype) if mx.issubdtype(array.dtype, mx.floating) and may_be_cast(path) else array

    model.update(tree_map_with_path(cast, model.parameters()))


@contextlib.contextmanager
def _appearing(target: Path) -> Iterator[Path]:
    """A folder beside the target, which is renamed to the target on success and removed otherwise."""
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # left by a conversion that was killed
    partial.mkdir(parents=True)
    try:
        yield partial
        partial.rename(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _write_model(target: Path, model: nn.Module, tell: Tell) -> tuple[int, float]:
    """Compute, write and free one shard after the other. Returns the bytes in all, and the bits of a weight."""
    weights: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
    total = sum(array.nbytes for array in weights.values())
    count = get_total_parameters(model)
    shards = make_shards(weights, SHARD_GB)
    # From here on only the shards refer to the arrays, so that each is freed with its shard.
    model.update(tree_map(lambda _: mx.array([]), model.parameters()))
    weights.clear()
    files: dict[str, str] = {}
    written = 0
    for number in range(len(shards)):
        shard, shards[number] = shards[number], {}
        name = (
            "model.safetensors"
            if len(shards) == 1
            else f"model-{number + 1:05}-of-{len(shards):05}.safetensors"
        )
        for array in shard.values():
            mx.eval(array)  # one by one, so that only one matrix at a time is unpacked in memory
            written += array.nbytes
            tell(Step(written, total, "quantising"))
        mx.save_safetensors(str(target / name), shard, metadata={"format": "mlx"})
        files.update(dict.fromkeys(shard, name))
        del shard, array
        mx.clear_cache()
    index = {
        "metadata": {"total_size": total, "total_parameters": count},
        "weight_map": dict(sorted(files.items())),
    }
    (target / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    return total, total * 8 / max(1, count)


def _copy_the_rest(folder: Path, target: Path) -> None:
    """Copy the tokenizer, templates, processors, licence and card: all files besides the weights, except code."""
    for path in sorted(folder.iterdir()):
        name = path.name
        if not path.is_file() or name.startswith(".") or name in WRITTEN:
            continue
        if path.suffix in (*WEIGHTS, ".py") or name.endswith(".index.json"):
            continue
        shutil.copyfile(path, target / name)
