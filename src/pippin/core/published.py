"""Files of a model's folder as publishers write them: JSON that Python reads, and files that are not what they are
called."""

import json
import re
from pathlib import Path
from typing import Any, Final

FLOAT: Final = "__float__"
FLOATS: Final = {"Infinity": float("inf"), "-Infinity": float("-inf"), "NaN": float("nan")}
"""Numbers that JSON does not have. Python writes them bare, transformers as `{"__float__": "Infinity"}`."""

LFS: Final = b"version https://git-lfs"
# Not a `<` alone: safetensors begin with their header's length, whose first byte may be one.
WEB_PAGE: Final = re.compile(rb"\s*<(!doctype|html|head|body|\?xml)", re.IGNORECASE)
HUB_PREFIX: Final = "models--"


def from_published(data: bytes | str) -> Any:
    """A JSON value as transformers and mlx-lm read it. Raises `ValueError`."""
    try:
        return json.loads(data, object_hook=_number)
    except RecursionError as error:
        raise ValueError("is nested too deep") from error


def _number(found: dict[str, Any]) -> Any:
    named = found.get(FLOAT)
    return FLOATS[named] if len(found) == 1 and isinstance(named, str) and named in FLOATS else found


def object_in(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty where the file is missing or holds none."""
    try:
        found = from_published(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def name_of(folder: Path) -> str:
    """What to call the model in `folder`: the repository of a snapshot in the Hub's cache, else the folder's name."""
    root = folder.parent.parent.name
    if folder.parent.name == "snapshots" and root.startswith(HUB_PREFIX):
        return root.removeprefix(HUB_PREFIX).replace("--", "/")
    return folder.name


def mistaken(path: Path) -> str | None:
    """What a file is in place of its content, as the end of a sentence that says the way out; None if nothing is seen.
    Raises `OSError`."""
    if not path.is_file():  # opening a pipe would block
        return "is no ordinary file"
    with path.open("rb") as file:
        start = file.read(64)
    if not start:
        return "is empty: fetch it again"
    if start.startswith(LFS):
        return "is a Git LFS pointer in place of the file: `git lfs pull` in its folder fetches it"
    if WEB_PAGE.match(start):
        return "is a web page: fetch it again, from the address of the file itself"
    return None
