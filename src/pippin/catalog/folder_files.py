"""Values in the small files of a model folder, whose contents are untrusted."""

from pathlib import Path
from typing import Any

from pippin.core.published import LARGEST

Json = dict[str, Any]


def find_text(path: Path) -> str | None:
    """The text of a file; None if it is missing or cannot be read."""
    try:
        small = path.is_file() and path.stat().st_size <= LARGEST
        return path.read_text(encoding="utf-8") if small else None
    except (OSError, UnicodeDecodeError):
        return None


def whole(value: object) -> int | None:
    """A positive integer, or None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def real(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def text(value: object) -> str | None:
    return value if isinstance(value, str) else None
