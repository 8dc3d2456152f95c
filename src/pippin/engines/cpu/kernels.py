"""Whether Pippin's own kernels (the package `pippin-kernels`) can run on this machine, and on which instructions."""

from importlib.util import find_spec

PACKAGE = "pippin_kernels"


def why_missing() -> str | None:
    """Why the kernels cannot be used here, or None. Starts no thread."""
    if find_spec(PACKAGE) is None:
        return "the package pippin-kernels is not installed (make kernels, or pip install ./kernels)"
    from pippin_kernels import why_unavailable

    reason: str | None = why_unavailable()
    return reason


def best_instruction_set() -> str:
    """The best instruction set of this machine, if the kernels are not missing."""
    from pippin_kernels import instruction_sets

    best: str = instruction_sets()[0]
    return best


def has_amx() -> bool:
    """Whether `int8-amx` may be asked for here."""
    if why_missing() is not None:
        return False
    from pippin_kernels import int8_sets

    return "amx" in int8_sets()
