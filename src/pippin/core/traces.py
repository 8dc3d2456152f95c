"""Where an exception came from, without its message, which may quote a client."""

import re
import traceback
from typing import Final

_FOLDERS: Final = re.compile(r"(?<![\w.:/])~?/(?:[^\s/'\":,;()]+/)+")


def trace_of(error: BaseException) -> str:
    """The traceback of an exception without any messages: causes first, the exception itself last."""
    parts = []
    current: BaseException | None = error
    while current is not None:
        frames = "".join(traceback.format_tb(current.__traceback__))
        parts.append(f"Traceback (most recent call last):\n{frames}{type(current).__name__}")
        if isinstance(current, BaseExceptionGroup):
            parts += [trace_of(inner) for inner in current.exceptions]
        hidden = None if current.__suppress_context__ else current.__context__
        current = current.__cause__ or hidden
    return "\n\n".join(reversed(parts))


def without_folders(text: str, *folders: str | None) -> str:
    """The message with file names but without their folders, which clients need not know.

    `folders` are removed first, because a path with spaces cannot be told from other words.
    """
    for folder in filter(None, folders):
        text = text.replace(folder.rstrip("/") + "/", "").replace(folder, "the model")
    return _FOLDERS.sub("", text)
