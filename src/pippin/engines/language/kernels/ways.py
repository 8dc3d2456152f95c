"""The ways in which Pippin's own kernels (the package `pippin-kernels`) compute a model: as whole layers, by single
operations, or not at all."""

from typing import TYPE_CHECKING, Literal

import mlx.nn as nn
import msgspec

from pippin.config.options.model import CpuActivations
from pippin.engines.cpu.kernels import why_missing

if TYPE_CHECKING:
    from pippin.engines.language.kernels.decoder import KernelDecoder

Means = Literal["fused layers", "fused operations", "float32"]


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
