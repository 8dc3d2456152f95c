"""Turns files that a prompt names into message parts.

A picture, a recording or a clip is attached if the prompt contains its path, in the forms that terminals write when a
file is dropped on them: bare, in quotes, or with escaped spaces. Any other file is attached, as text or as a PDF, if
`@` precedes its path.
"""

import base64
import mimetypes
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from pippin.cli.terminal import size
from pippin.config.errors import ConfigError

Content = str | list[dict[str, Any]]

SOUNDS: Final = {".wav": "wav", ".mp3": "mp3", ".flac": "flac", ".ogg": "ogg", ".m4a": "m4a"}
PICTURES: Final = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff")
CLIPS: Final = (".mp4", ".mov", ".webm", ".mkv", ".avi")
MOST_TEXT: Final = 2_000_000  # most bytes of a file attached as text
WORD: Final = re.compile(r"""(?<!\S)(@?)(?:"([^"\n]+)"|'([^'\n]+)'|((?:\\.|[^\s\\])+))""")


PATH: Final = re.compile(r"/|\.\w{1,5}$")


def attach(path: Path) -> dict[str, Any]:
    """The message part for a file. Raises `ConfigError` if it can't be read or is of no supported type."""
    try:
        data = path.expanduser().read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}, so it can't be attached.") from None
    suffix = path.suffix.lower()
    if suffix in SOUNDS:
        sound = {"data": base64.b64encode(data).decode(), "format": SOUNDS[suffix]}
        return {"type": "input_audio", "input_audio": sound}
    seen = "image_url" if suffix in PICTURES else "video_url" if suffix in CLIPS else None
    if seen is not None:
        return {"type": seen, seen: {"url": _address(path, data)}}
    if suffix == ".pdf":
        return {"type": "file", "file": {"filename": path.name, "file_data": _address(path, data)}}
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
    return {"type": "text", "text": f"File {path.name}:\n\n{text}"}


def read_prompt(text: str, behind: str = "") -> tuple[Content, tuple[Path, ...]]:
    """The content of a message, and its attached files, which the text names.

    `behind` is text appended as it is. It may be written by others, such as a log, so names in it attach no files.
    """
    attached = tuple(named_files(text))
    said = "\n\n".join(each for each in (text, behind) if each)
    if not attached:
        return said, ()
    return [*map(attach, attached), {"type": "text", "text": said}], attached


def named_files(text: str) -> Iterator[Path]:
    """The files that a prompt names, each once. A word after `@` that is not a file is an ordinary word."""
    seen: set[Path] = set()
    for at, candidates in _words(text):
        wanted = (path for path in candidates if at or path.suffix.lower() in (*PICTURES, *SOUNDS, *CLIPS))
        # Not by the path's own method: a long word can't be the name of a file, and is none here.
        path = next(filter(os.path.isfile, wanted), None)
        if path is not None and path not in seen:
            seen.add(path)
            yield path


def missing_files(text: str) -> Iterator[Path]:
    """Words after `@` that look like paths but are not files, and may be typos."""
    for at, candidates in _words(text):
        if at and PATH.search(str(candidates[-1])) and not any(map(os.path.isfile, candidates)):
            yield candidates[-1]


def _words(text: str) -> Iterator[tuple[bool, tuple[Path, ...]]]:
    """Whether `@` precedes each word, and the paths it may be: with or without punctuation at its end."""
    for found in WORD.finditer(text):
        at, *quoted, bare = found.groups()
        word = next((each for each in quoted if each), None) or re.sub(r"\\(.)", r"\1", bare or "")
        candidates = (word, word.rstrip(".,;:!?)"))
        yield bool(at), tuple(Path(each).expanduser() for each in candidates if each)


def _address(path: Path, data: bytes) -> str:
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
