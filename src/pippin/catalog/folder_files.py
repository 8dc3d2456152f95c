"""Values in the small files of a model folder, whose contents are untrusted."""

from typing import Any

Json = dict[str, Any]


def whole(value: object) -> int | None:
    """A positive integer, or None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def real(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def text(value: object) -> str | None:
    return value if isinstance(value, str) else None
