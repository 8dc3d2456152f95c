"""The arrays of a checkpoint as mlx-lm and mlx-vlm take them: of the files that count, with what other tools packed in
MLX's own form. The libraries read all files that a pattern finds, and the last one wins."""

import platform
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from pippin.config.accelerator import accelerator
from pippin.core.published import object_in
from pippin.core.safetensors import digest_of, find_header, weight_files
from pippin.engines.language.configuration import Config
from pippin.engines.language.upstream.file_arrays import Files
from pippin.engines.language.upstream.mends import classes_of
from pippin.engines.language.upstream.quantised import Arrays, left_to_libraries, settle_packed, unquantised

FP8 = "F8_E4M3"
OTHER_SETTINGS = "hf_quant_config.json"  # ModelOpt's
HEAD = re.compile(r"(?:^|\.)(?:lm_head|embed_out)\.weight$")
OF_HEAD = re.compile(r"(?:^|\.)(?:lm_head|embed_out)\.\w+$")
EMBEDDING = re.compile(
    r"(?:^|\.)(?:embed_tokens|wte|word_embeddings|tok_embeddings|embed_in|embeddings?)\.weight$"
)
OF_MEDIA = re.compile(r"vision|visual|audio|image|patch|position")
TIED = "tie_word_embeddings"
TYPES = {"float16": mx.float16, "bfloat16": mx.bfloat16, "float32": mx.float32}


def read_arrays(folder: Path, config: Config, files: Files | None = None, *, vision: bool = False) -> Arrays:
    """The arrays of a checkpoint by name, none evaluated, for mlx-lm's model, or mlx-vlm's for `vision`; `config` gets
    the settings that go with them, and `files` where they lie.

    Raises `ValueError` for files that contradict each other, and for arrays that are no numbers of their own.
    """
    if "quantization_config" not in config and (other := object_in(folder / OTHER_SETTINGS)):
        config["quantization_config"] = other
    wide, decodes = _wide(config), not left_to_libraries(config, vision=vision)
    found: Arrays = {}
    chosen = weight_files(folder)
    for path in chosen.files:
        header, arrays = find_header(path), mx.load(str(path))
        assert isinstance(arrays, dict)  # of a safetensors file
        assert header is not None
        if files is not None:
            files.note(arrays, path, header)
        for name, array in arrays.items():
            # transformers saves the parts that a model has none of, such as shared experts, with no numbers in them.
            if chosen.owners[name] == path and array.size:
                # MLX loads FP8 numbers as bytes.
                eight = decodes and header.arrays[name].dtype == FP8
                found[name] = mx.from_fp8(array, dtype=wide) if eight else array
    found = unquantised(found, config, wide) if decodes else found
    settle_packed(found, config)
    _settle_ties(found, config)
    return found


def _settle_ties(arrays: Arrays, config: Config) -> None:
    """Have a head count that is stored and is not the embedding, whatever `config` says, as in transformers; and have
    the embedding be the head of the whole and of its text model where either says so and none is stored."""
    head, embedding = (
        next((arrays[name] for name in arrays if part.search(name) and not OF_MEDIA.search(name)), None)
        for part in (HEAD, EMBEDDING)
    )
    parts = [part for part in (config, config.get("text_config")) if isinstance(part, dict)]
    said = {part.get(TIED) for part in parts}
    changed = {True, False} <= said  # where the parts disagree, what is stored decides
    if False not in said and head is not None and embedding is not None:
        changed = not mx.array_equal(head, embedding)
    if changed:
        for part in parts:
            part[TIED] = head is None


def with_head(model: nn.Module, arrays: Arrays, config: Config, stored: Arrays) -> Arrays:
    """The arrays by the names of a model's parameters, with those of the head that are `stored`, since some classes put
    the embedding in its place, or the embedding's where it is the head and the class has one of its own."""
    paths = [path for path, _ in model.named_modules() if not OF_MEDIA.search(path)]
    heads, embeddings = (
        [f"{path}." for path in paths if part.search(f"{path}.weight")] for part in (HEAD, EMBEDDING)
    )
    tied = True in (config.get(TIED), (config.get("text_config") or {}).get(TIED))
    if tied and len(heads) == len(embeddings) == 1 and f"{heads[0]}weight" not in arrays:
        found = {name: array for name, array in arrays.items() if name.startswith(embeddings[0])}
        return arrays | {name.replace(embeddings[0], heads[0]): array for name, array in found.items()}
    kept = {name.rpartition(".")[2]: array for name, array in stored.items() if OF_HEAD.search(name)}

    def own(name: str, array: mx.array) -> mx.array:
        head = kept.get(name.rpartition(".")[2], array) if OF_HEAD.search(name) else array
        return head if (head.shape, head.dtype) == (array.shape, array.dtype) else array

    return {name: own(name, array) for name, array in arrays.items()}


def refuse_lost_head(model: nn.Module, arrays: Arrays, config: Config) -> None:
    """Raises `ValueError` for a stored head that counts and that the model's class has no place for."""
    heads = any(HEAD.search(f"{name}.weight") for name, _ in model.named_modules())
    if config.get(TIED) is False and not heads and any(map(HEAD.search, arrays)):
        raise ValueError(
            "lm_head.weight is not the embedding, for which the class of this architecture takes it"
        )


def _wide(config: Config) -> mx.Dtype:
    """The type of what is unpacked. A CPU computes in float32, so that nothing is rounded there."""
    if accelerator() == "cpu":
        return mx.float32
    parts = (config, config.get("text_config") or {})
    named = next((part[key] for part in parts for key in ("dtype", "torch_dtype") if part.get(key)), None)
    return TYPES.get(str(named).removeprefix("torch."), mx.bfloat16)


def _for_kernels(folder: Path, config: Config) -> dict[str, Any]:
    """What the kernels ask of a model: the `files` where its arrays lie, and the `origin` that tells it from others."""
    times = [path.stat().st_mtime_ns for path in sorted(folder.glob("*.safetensors"))]
    origin = digest_of(folder, f"{config} {times} {platform.node()} {mx.device_info()}")
    return {"files": Files(), "origin": origin}


def classes_in(folder: Path, aside: tuple[str, ...] = ()) -> Callable[[Config], tuple[Any, Any]]:
    """What makes a model of mlx-lm and its arguments, for its `load_model`, with the arrays of `read_arrays`, but for
    those that begin with a word of `aside`."""

    def classes(config: Config) -> tuple[Any, Any]:
        make, arguments = classes_of(config)
        for_kernels = _for_kernels(folder, config) if accelerator() == "cpu" else {}
        found = read_arrays(folder, config, for_kernels.get("files"))
        arrays = _whole({name: found[name] for name in found if not name.startswith(aside)}, config)

        def made(given: Any) -> nn.Module:
            model = make(given)
            # MLX counts no such attributes among a model's arrays.
            vars(model).update(for_kernels)
            refuse_lost_head(model, arrays, config)
            sanitize = getattr(model, "sanitize", lambda found: found)

            def once(_: Arrays) -> Any:
                # An attribute of the model would hold all arrays as long as it lives.
                del model.sanitize
                return with_head(model, sanitize(arrays), config, {})

            model.sanitize = once
            return model

        return made, arguments

    return classes


def _whole(arrays: Arrays, config: Config) -> Arrays:
    """The arrays of a body that was saved without its head (`MistralModel`), as the whole model names them."""
    body = [str(name).endswith("Model") for name in config.get("architectures") or ()]
    if not body or not all(body) or "embed_tokens.weight" not in arrays:
        return arrays
    return {f"model.{name}": array for name, array in arrays.items()}


def refuse_bytes(model: nn.Module) -> None:
    """Raises `ValueError` for a weight or bias whose numbers are integers, or true and false, without scales."""
    for path, module in model.named_modules():
        scaled = any(name.startswith(("scales", "weight_scale")) for name in module)
        for name, array in () if scaled else module.items():
            counts = name.endswith(("weight", "bias")) and isinstance(array, mx.array)
            if counts and not mx.issubdtype(array.dtype, mx.floating):
                kind = str(array.dtype).rpartition(".")[2]
                raise ValueError(
                    f"{path}.{name} holds integers ({kind}) and has no scales, so its numbers are unknown"
                )
