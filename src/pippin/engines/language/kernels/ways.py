"""The ways in which Pippin's own kernels (the package `pippin-kernels`) compute a model: as whole layers, by single
operations, or not at all."""

from typing import TYPE_CHECKING, Literal

import mlx.nn as nn
import msgspec
import numpy as np
from numpy.typing import NDArray

from pippin.config.options.model import CpuActivations
from pippin.engines.cpu.kernels import why_missing

if TYPE_CHECKING:
    from pippin.engines.language.kernels.decoder import KernelDecoder

Means = Literal["fused layers", "fused operations", "float32"]

TOLERANCE = 1e-3
"""A fraction of the largest number of a layer's output: far above rounding, far below another architecture's."""


class OtherAnswer(Exception):
    """The kernels compute something else than the installed mlx-lm or mlx-vlm, whose class of the model has changed."""


def require_agreement(part: str, found: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """How far what the kernels found for a part of a model is from what mlx-lm gives. Raises `OtherAnswer`."""
    difference = float(np.abs(found - expected).max() / max(float(np.abs(expected).max()), 1e-6))
    if not difference < TOLERANCE:
        raise OtherAnswer(
            f"{part} computed by the kernels is {difference:.1g} of its largest number away from what the installed "
            "mlx-lm gives"
        )
    return difference


class Way(msgspec.Struct, frozen=True):
    """How a model is computed on a CPU: whole layers by the kernels, some operations, or none; `reason` says why not
    more."""

    means: Means
    reason: str | None = None


def way_of(model: nn.Module) -> Way:
    """How a model of mlx-lm will be computed. Looks at no weight."""
    missing = why_missing()
    if missing is not None:
        return Way("float32", missing)
    from pippin.engines.language.kernels import architectures, operations

    reason = architectures.why_not(model)
    if reason is None:
        return Way("fused layers")
    some = any(operations.multiplies(module) for _, module in operations.replaceable(model))
    return Way("fused operations" if some else "float32", reason)


def put_on(
    model: nn.Module, way: Way, threads: int, *, activations: CpuActivations = "float32", whole: bool = True
) -> tuple[nn.Module, str]:
    """The model on the kernels, by a way that `way_of` returned, and the instruction set. Vectors are rounded to
    `activations`; `whole` is as in `operations.replace`. Removes weights from the original model. Raises `ValueError`
    for damaged weights, and `OtherAnswer`."""
    if way.means == "fused operations":
        from pippin.engines.language.kernels import operations

        return model, operations.replace(model, threads, activations=activations, whole=whole)
    from pippin.engines.language.kernels.decoder import KernelDecoder

    found = KernelDecoder(model, threads, activations=activations)
    return found, found.instruction_set


def decoder_in(model: nn.Module) -> "KernelDecoder | None":
    """The model, if it is one of mlx-lm's whose layers the kernels compute: it does not use the BLAS."""
    return model if hasattr(model, "instruction_set") else None
