"""Whether a model's steps are computed by Pippin's own kernels, which are a package of their own, `pippin-kernels`.

    python -m pippin.engines.cpu.kernels FOLDER

prints how a model's folder will be computed on a CPU as a line of JSON, for `pippin show`; no weight is read.
"""

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import mlx.nn as nn
import msgspec

PACKAGE = "pippin_kernels"

Means = Literal["fused layers", "fused operations", "float32"]


class Way(msgspec.Struct, frozen=True):
    """How a model is computed on a CPU: whole layers by the kernels, some operations, or none; `reason` says why not
    more."""

    means: Means
    reason: str | None = None


class OtherAnswer(Exception):
    """The kernels compute something else than mlx-lm does, whose class of the model is not what it was."""


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
    model: nn.Module, way: Way, threads: int, *, rounds: bool = False, whole: bool = True
) -> tuple[nn.Module, str]:
    """The model as the kernels compute it by a way that `way_of` gave, and the instruction set. `rounds` vectors to
    int8; `whole` as in `operations.replace`. Takes weights out of the model that was. Raises `ValueError` for weights
    that are damaged, and `OtherAnswer`."""
    if way.means == "fused operations":
        from pippin.engines.cpu import operations

        return model, operations.replace(model, threads, rounds=rounds, whole=whole)
    from pippin.engines.cpu.decoder import KernelDecoder

    found = KernelDecoder(model, threads, rounds=rounds)
    return found, found.instruction_set


def computes_all(model: nn.Module) -> bool:
    """Whether the kernels compute all of a model, so that the BLAS has nothing of it to do."""
    return hasattr(model, "instruction_set")


def way_of_folder(folder: Path) -> Way:
    """As `way_of`, of a model's folder."""
    from mlx_lm.utils import load_model

    from pippin.engines.language.vision import checkpoint

    if checkpoint.is_vision(folder):
        return Way("float32", "it takes media, which mlx-vlm computes")
    try:
        model, _ = load_model(folder, lazy=True, strict=False, trust_remote_code=False)
    except Exception as error:  # whatever a model's class raises for its configuration
        return Way("float32", f"mlx-lm does not load it ({type(error).__name__}: {error})")
    return way_of(model)


if __name__ == "__main__":
    found = way_of_folder(Path(sys.argv[1]))
    sys.stdout.write(json.dumps(msgspec.to_builtins(found)) + "\n")
