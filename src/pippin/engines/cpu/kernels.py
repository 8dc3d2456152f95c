"""Whether a model's steps are computed by Pippin's own kernels, which are a package of their own, `pippin-kernels`.

    python -m pippin.engines.cpu.kernels FOLDER KIND

prints how the model of a kind in a folder will be computed on a CPU as a line of JSON, for `pippin show`; no weight is
read.
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, cast

import mlx.nn as nn
import msgspec

from pippin.config.options.model import CpuActivations
from pippin.core.errors import ServerError
from pippin.core.models import ModelKind
from pippin.engines.file_limit import own_file_limit

PACKAGE = "pippin_kernels"

Means = Literal["fused layers", "fused operations", "float32"]


class Way(msgspec.Struct, frozen=True):
    """How a model is computed on a CPU: whole layers by the kernels, some operations, or none; `reason` says why not
    more."""

    means: Means
    reason: str | None = None


def why_missing() -> str | None:
    """Why the kernels cannot be used here, or None. Starts no thread."""
    if find_spec(PACKAGE) is None:
        return "the package pippin-kernels is not installed (make kernels, or pip install ./kernels)"
    from pippin_kernels import why_unavailable

    reason: str | None = why_unavailable()
    return reason


def best_instruction_set() -> str:
    """Of this machine, where nothing is missing."""
    from pippin_kernels import instruction_sets

    best: str = instruction_sets()[0]
    return best


def refuse_activations(activations: CpuActivations) -> None:
    """Raises `ServerError("load_failed")` where this machine cannot do what the option says."""
    from pippin_kernels import KernelError, Kernels

    from pippin.engines.cpu.matrices import round_activations

    try:
        round_activations(Kernels(1), activations)
    except KernelError as error:
        raise ServerError(
            "load_failed", f"--cpu-activations {activations} cannot be used: {error} Take int8 instead."
        ) from error


def has_amx() -> bool:
    """Whether `int8-amx` may be asked for here, where nothing is missing."""
    from pippin_kernels import int8_sets

    return "amx" in int8_sets()


def way_of(model: nn.Module) -> Way:
    """How a model of mlx-lm will be computed. Looks at no weight."""
    missing = why_missing()
    if missing is not None:
        return Way("float32", missing)
    from pippin.engines.cpu import architectures, operations

    reason = architectures.why_not(model)
    if reason is None:
        return Way("fused layers")
    some = any(operations.multiplies(module) for _, module in operations.replaceable(model))
    return Way("fused operations" if some else "float32", reason)


def put_on(
    model: nn.Module, way: Way, threads: int, *, activations: CpuActivations = "float32", whole: bool = True
) -> tuple[nn.Module, str]:
    """The model as the kernels compute it by a way that `way_of` gave, and the instruction set. Vectors become what
    `activations` says; `whole` as in `operations.replace`. Takes weights out of the model that was. Raises `ValueError`
    for weights that are damaged, and `OtherAnswer`."""
    if way.means == "fused operations":
        from pippin.engines.cpu import operations

        return model, operations.replace(model, threads, activations=activations, whole=whole)
    from pippin.engines.cpu.decoder import KernelDecoder

    found = KernelDecoder(model, threads, activations=activations)
    return found, found.instruction_set


def way_of_encoder(model: nn.Module) -> Way:
    """How an embedding model or a reranker of mlx-vlm will be computed. Looks at no weight."""
    missing = why_missing()
    if missing is not None:
        return Way("float32", missing)
    from pippin.engines.cpu import embedder, encoder

    room = embedder if type(model).__module__ == embedder.QWEN3 else encoder
    reason = room.why_not(model)
    return Way("fused layers") if reason is None else Way("float32", reason)


def put_encoder_on(model: nn.Module, threads: int, *, activations: CpuActivations = "float32") -> nn.Module:
    """The model with the layers on the kernels, for which `way_of_encoder` gave fused layers. Vectors become what
    `activations` says. Takes weights out of the model that was. Raises `ValueError` for weights that are damaged, and
    `OtherAnswer`."""
    from pippin.engines.cpu import embedder, encoder

    if type(model).__module__ == embedder.QWEN3:
        return embedder.KernelEmbedder(model, threads, activations=activations)
    return encoder.put_on(model, threads, activations=activations)


def computes_all(model: nn.Module) -> bool:
    """Whether the kernels compute all of a model, so that the BLAS has nothing of it to do."""
    return hasattr(model, "instruction_set")


def way_of_folder(folder: Path, kind: ModelKind) -> Way:
    """How a CPU will compute the model of a kind in a folder. Looks at no weight."""
    load, way = _loader(folder, kind)
    try:
        model = load()
    except Exception as error:  # whatever a model's class raises for its configuration
        return Way("float32", f"it is not loaded ({type(error).__name__}: {error})")
    return way(model)


def _loader(folder: Path, kind: ModelKind) -> tuple[Callable[[], nn.Module], Callable[[nn.Module], Way]]:
    """What gives the model, and says how it will be computed."""
    from mlx_lm.utils import load_model

    from pippin.engines.embeddings import ENCODERS, load_encoder_of
    from pippin.engines.language.vision import checkpoint
    from pippin.engines.reranking import is_classifier, load_classifier

    config = json.loads((folder / "config.json").read_bytes())
    if kind == "reranking" and is_classifier(config):
        return partial(load_classifier, folder), way_of_encoder
    if kind == "embeddings" and config.get("model_type") in ENCODERS:
        return partial(load_encoder_of, folder, config), way_of_encoder
    if checkpoint.is_vision(folder):
        return nn.Module, lambda _: Way("float32", "it takes media, which mlx-vlm computes")
    return lambda: load_model(folder, lazy=True, strict=False, trust_remote_code=False)[0], way_of


if __name__ == "__main__":
    with own_file_limit():
        found = way_of_folder(Path(sys.argv[1]), cast(ModelKind, sys.argv[2]))
    sys.stdout.write(json.dumps(msgspec.to_builtins(found)) + "\n")
