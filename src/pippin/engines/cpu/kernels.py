"""Whether a model's steps are computed by Pippin's own kernels, which are a package of their own, `pippin-kernels`."""

from importlib.util import find_spec

import mlx.nn as nn

PACKAGE = "pippin_kernels"


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


def why_not(model: nn.Module) -> str | None:
    """Why this model's steps cannot be computed by the kernels, or None."""
    missing = why_missing()
    if missing is not None:
        return missing
    from pippin.engines.cpu import architectures

    return architectures.why_not(model)


def on_kernels(model: nn.Module, threads: int, *, rounds: bool = False) -> nn.Module:
    """The model as the kernels compute it, where `why_not` had no objection; `rounds` its vectors to int8. Takes its
    weights out of it. Raises `ValueError` for weights that are damaged."""
    from pippin.engines.cpu.decoder import KernelDecoder

    return KernelDecoder(model, threads, rounds=rounds)
