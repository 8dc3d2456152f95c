"""Whether Pippin's own kernels (the package `pippin-kernels`) can run on this machine, and on which instructions."""

from importlib.util import find_spec

from pippin.config.errors import kernels_command

PACKAGE = "pippin_kernels"


def why_missing() -> str | None:
    """Why the kernels cannot be used here, or None. Starts no thread."""
    if find_spec(PACKAGE) is None:
        return f"the package pippin-kernels is not installed ({kernels_command()})"
    from pippin_kernels import why_unavailable

    reason: str | None = why_unavailable()
    return reason


def best_instruction_set() -> str:
    """The best instruction set of this machine, if the kernels are not missing."""
    from pippin_kernels import instruction_sets

    best: str = instruction_sets()[0]
    return best


def multiplies_int8_at_once() -> bool:
    """Whether the kernels have one instruction that adds up products of int8, as VNNI and NEON do. AVX2 by itself
    takes several."""
    if why_missing() is not None:
        return False
    from pippin_kernels import int8_sets

    # The best that this processor has comes first.
    return int8_sets()[0] not in ("avx2", "baseline")
