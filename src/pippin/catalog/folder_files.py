"""Reads the small JSON files of a model folder, whose contents are untrusted."""

import stat
from pathlib import Path
from typing import Any, Final

from pippin.core.errors import ServerError
from pippin.core.published import from_published, mistaken, name_of

Json = dict[str, Any]
LARGEST: Final = 32 * 1024 * 1024  # bytes


def find_json(path: Path) -> Json | None:
    """The object in a JSON file; None if there is no such file. Raises `ServerError` for any other content."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would block, and a device has no end
            raise broken(path, "is no ordinary file")
        if status.st_size > LARGEST:
            raise broken(path, "is too large to be read")
        document = from_published(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise broken(path, f"cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise broken(path, mistaken(path) or "is not JSON: fetch it again") from error
    if not isinstance(document, dict):
        raise broken(path, "does not hold a JSON object")
    return document


def find_text(path: Path) -> str | None:
    """The text of a file; None if it is missing or cannot be read."""
    try:
        small = path.is_file() and path.stat().st_size <= LARGEST
        return path.read_text(encoding="utf-8") if small else None
    except (OSError, UnicodeDecodeError):
        return None


def broken(path: Path, what: str) -> ServerError:
    return ServerError("load_failed", f"{path.name} of the model {name_of(path.parent)} {what}.")


def whole(value: object) -> int | None:
    """A positive integer, or None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def real(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def table(value: object) -> Json:
    """A JSON object; an empty one for anything else."""
    return value if isinstance(value, dict) else {}
