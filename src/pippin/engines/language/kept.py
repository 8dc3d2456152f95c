"""What libraries say of a model, kept on the disk: to import transformers takes longer than all else of a start."""

import contextlib
import hashlib
import os
from collections.abc import Callable
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Final, TypeVar

import msgspec

import pippin
from pippin.config import environment, installed
from pippin.core.decoding import from_message

MOST: Final = 1 << 29  # bytes of all that is kept
MOST_FILES: Final = 256
CHECKSUM: Final = 16  # bytes
LIBRARIES: Final = ("transformers", "tokenizers", "mlx", "mlx-lm", "mlx-vlm")

Said = TypeVar("Said", bound=msgspec.Struct)


def kept(kind: type[Said], ask: Callable[[], Said], *of: str | None) -> Said:
    """What `ask` returns, or what it returned in an earlier process for the same words `of`, kind and versions of the
    libraries. Raises what `ask` raises."""
    said = known(kind, *of)
    if said is None:
        keep(said := ask(), *of)
    return said


def known(kind: type[Said], *of: str | None) -> Said | None:
    """What an earlier process has kept of this kind for these words; nothing is where None is among them."""
    path = _place(kind, of)
    with contextlib.suppress(OSError, msgspec.DecodeError):
        whole = b"" if None in of else path.read_bytes()
        if whole == _signed(path, data := whole[CHECKSUM:]):
            return from_message(data, kind)
    return None


def _signed(path: Path, data: bytes) -> bytes:
    """A file's data behind their checksum: a bit that the disk has lost would change a tokenizer's words."""
    return hashlib.blake2b(path.name.encode() + data, digest_size=CHECKSUM).digest() + data


def keep(said: msgspec.Struct, *of: str | None) -> None:
    """Keep this for later processes, for these words."""
    # A home that can't be written costs the time alone; so does a text that is no Unicode.
    with contextlib.suppress(OSError, UnicodeEncodeError):
        if None not in of:
            path = _place(type(said), of)
            _write(path, _signed(path, msgspec.msgpack.encode(said)))


def _place(kind: type, of: tuple[str | None, ...]) -> Path:
    words = "\0".join((code(), kind.__qualname__, *map(str, of)))
    return environment.home() / "kept" / hashlib.sha256(words.encode()).hexdigest()


@cache
def code() -> str:
    """The versions of the libraries, and the state of Pippin's own code."""
    folders = installed.folders()
    versions = [folders[each].name for each in LIBRARIES if each in folders]
    # `rglob` takes four times as long.
    own = ((place, name) for place, _, names in os.walk(Path(__file__).parent) for name in names)
    changes = [os.stat(os.path.join(*each)).st_mtime_ns for each in own if each[1].endswith(".py")]
    return f"{pippin.__version__} {max(changes)} {len(changes)} {versions}"


def _write(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, and delete the oldest beyond what is kept."""
    path.parent.mkdir(parents=True, exist_ok=True)
    begun = path.with_suffix(f".{os.getpid()}")
    try:
        begun.write_bytes(data)
        begun.replace(path)
    finally:  # a full disk keeps no beginnings
        begun.unlink(missing_ok=True)
    newest = sorted(path.parent.iterdir(), key=lambda file: file.stat().st_mtime, reverse=True)
    sizes = accumulate(each.stat().st_size for each in newest)
    for number, (each, total) in enumerate(zip(newest, sizes, strict=True)):
        if total > MOST or number >= MOST_FILES:
            each.unlink(missing_ok=True)


def files_of(folder: Path) -> str:
    """Names, sizes and times of change of all files of a folder but its weights."""
    files = sorted({*folder.glob("*"), *folder.glob("*/*.jinja")})
    stats = {path: path.stat() for path in files if path.suffix != ".safetensors" and path.is_file()}
    return "\n".join(f"{path} {stat.st_size} {stat.st_mtime_ns}" for path, stat in stats.items())
