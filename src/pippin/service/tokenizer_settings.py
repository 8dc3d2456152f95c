"""The tokenizer settings in a model folder, for clients that ask."""

from pathlib import Path
from typing import Any, Final

import msgspec

from pippin.core.decoding import from_json

LARGEST: Final = 32 * 1024 * 1024  # bytes of a file
PATHS: Final = ("name_or_path", "_name_or_path", "tokenizer_file", "vocab_file")


def tokenizer_settings(folder: Path) -> dict[str, Any] | None:
    """The settings in `tokenizer_config.json` without paths, plus the chat template if it has a file of its own; None
    if there is nothing to read."""
    try:
        settings = from_json(_read(folder / "tokenizer_config.json"), dict[str, Any])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    for name in PATHS:
        settings.pop(name, None)
    template = folder / "chat_template.jinja"
    if template.is_file():
        settings["chat_template"] = _read(template).decode("utf-8", "replace")
    return settings


def _read(path: Path) -> bytes:
    if not path.is_file() or path.stat().st_size > LARGEST:
        raise OSError(f"{path.name} can't be read")
    return path.read_bytes()
