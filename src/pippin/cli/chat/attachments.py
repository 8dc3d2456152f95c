"""Makes message parts of the files that a prompt names.

A picture, a recording or a clip is attached where its path stands in the prompt, as terminals write it when a file is
dropped on them: bare, in quotes, or with escaped blanks. Any other file is attached as text where `@`
precedes its path.
"""

import base64
import mimetypes
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pippin.cli.chat.conversation import Content
from pippin.cli.terminal import size
from pippin.config.errors import ConfigError

SOUNDS: Final = {".wav": "wav", ".mp3": "mp3", ".flac": "flac", ".ogg": "ogg", ".m4a": "m4a"}
PICTURES: Final = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff")
CLIPS: Final = (".mp4", ".mov", ".webm", ".mkv", ".avi")
MOST_TEXT: Final = 2_000_000  # bytes of a file that is attached as text
WORD: Final = re.compile(r"""(?<!\S)(@?)(?:"([^"\n]+)"|'([^'\n]+)'|((?:\\.|[^\s\\])+))""")


@dataclass(frozen=True)
class Attached:
    """A file with the part of a message that it becomes."""

    path: Path
    part: dict[str, Any]


def attach(path: Path) -> Attached:
    """The part for a file. Raises `ConfigError` where it cannot be read or is nothing that a model can be shown."""
    try:
        data = path.expanduser().read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}, so it can't be attached.") from None
    suffix = path.suffix.lower()
    if suffix in SOUNDS:
        sound = {"data": base64.b64encode(data).decode(), "format": SOUNDS[suffix]}
        return Attached(path, {"type": "input_audio", "input_audio": sound})
    if suffix in PICTURES:
        return Attached(path, {"type": "image_url", "image_url": {"url": _address(path, data)}})
    if suffix in CLIPS:
        return Attached(path, {"type": "video_url", "video_url": {"url": _address(path, data)}})
    if len(data) > MOST_TEXT:
        raise ConfigError(
            f"{path} has {size(len(data))}, and text of at most {size(MOST_TEXT)} can be attached: cut it first, as "
            f"with `tail -c 100000 {path} | pippin run ...`."
        )
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError(
            f"{path} is neither text nor a picture, a recording or a clip ({', '.join((*PICTURES, *SOUNDS, *CLIPS))})."
        ) from None
    return Attached(path, {"type": "text", "text": f"File {path.name}:\n\n{text}"})


def read_prompt(text: str, more: tuple[Path, ...] = ()) -> tuple[Content, tuple[Path, ...]]:
    """The content of a message, and the files that it holds: those the text names, and `more`."""
    attached = [*(attach(path) for path in more), *(attach(path) for path in named_files(text))]
    if not attached:
        return text, ()
    parts = [*(each.part for each in attached), {"type": "text", "text": text}]
    return parts, tuple(each.path for each in attached)


def named_files(text: str) -> Iterator[Path]:
    """The files that a prompt names, each once. A word behind `@` that is no file is an ordinary word."""
    seen: set[Path] = set()
    for found in WORD.finditer(text):
        at, *quoted, bare = found.groups()
        word = next((each for each in quoted if each), None) or re.sub(r"\\(.)", r"\1", bare or "")
        for candidate in (word, word.rstrip(".,;:!?)")):
            path = Path(candidate).expanduser()
            wanted = at or path.suffix.lower() in (*PICTURES, *SOUNDS, *CLIPS)
            if candidate and wanted and _is_file(path):
                if path not in seen:
                    seen.add(path)
                    yield path
                break


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a long word is no name of a file
        return False


def _address(path: Path, data: bytes) -> str:
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
