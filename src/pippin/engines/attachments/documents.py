"""Reads documents (PDF) as text, and their first pages as pictures for models that see."""

import hashlib
import subprocess
import sys
from operator import attrgetter
from pathlib import Path
from typing import Final

from msgspec import Struct

from pippin.core.conversation import Document, Image, Inline, Text
from pippin.core.decoding import from_json
from pippin.engines.attachments import pdf
from pippin.engines.recent import Recent
from pippin.engines.refusals import refused

MOST_PICTURES: Final = 20
"""Pages of a document that are also shown as pictures."""
MOST_SECONDS: Final = 30.0
"""For one document; its reader begins no page after `pdf.SECONDS`, so that only a hostile page takes longer."""
MOST_KEPT: Final = 16
MOST_KEPT_BYTES: Final = 64 << 20
"""Documents that are kept, and bytes of their texts and pictures: agents send one again with every request."""

Parts = tuple[Text | Image, ...]


class Line(Struct, frozen=True):
    """One line of what `pdf.py` says."""

    pages: int = 0
    why: str = ""
    text: str | None = None
    picture: bytes | None = None


class Reading(Struct, frozen=True):
    """What was read of a document; `why` says why that is not all, or is empty."""

    count: int
    pages: tuple[Line, ...]
    why: str

    @property
    def size(self) -> int:
        """Bytes of what was read, about."""
        return sum(len(page.text or "") + len(page.picture or b"") for page in self.pages)


class Documents:
    """Reads documents, and keeps those read last. Several threads may use it at once."""

    def __init__(self) -> None:
        self._kept: Recent[bytes, Reading] = Recent(MOST_KEPT, MOST_KEPT_BYTES, attrgetter("size"))

    def parts(self, document: Document, where: str, *, sees: bool) -> Parts:
        """The text of the pages, each followed by its picture if the model `sees`.

        Raises `ServerError` naming `where` for a document that can't be read, or without anything for this model.
        """
        assert isinstance(document.source, Inline)
        found = self._read(document.source.data, MOST_PICTURES if sees else 0)
        if not found.pages:
            why = found.why or "it has no pages"
            raise refused(where, f"can't be read as PDF: {why}. Send its text instead.")
        if not any(page.text or page.picture for page in found.pages):
            raise refused(
                where,
                f"holds no text (pages: {found.count}), and this model reads text only. Send its text, or choose a "
                "model that takes pictures.",
                "unsupported",
            )
        return _shown(document, found, where)

    def _read(self, data: bytes, pictures: int) -> Reading:
        key = hashlib.blake2b(data, digest_size=16, person=b"%d" % pictures).digest()
        if (kept := self._kept.get(key)) is not None:
            return kept
        try:
            found = read(data, pictures)
        except OSError as error:  # there is no memory for another process now
            return Reading(0, (), f"its reader can't be started ({error.strerror})")
        self._kept.put(key, found)
        return found


def read(data: bytes, pictures: int) -> Reading:
    """Read a PDF in a process of its own, which is ended after `MOST_SECONDS`: what it said by then is kept.

    Raises `OSError` if no process can be started.
    """
    command = [sys.executable, "-I", str(Path(pdf.__file__)), str(pictures)]
    late = False
    try:
        said = subprocess.run(
            command,
            input=data,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=MOST_SECONDS,
            check=False,
        ).stdout
    except subprocess.TimeoutExpired as error:
        said, late = error.stdout or b"", True
    lines = [from_json(line, Line) for line in said.splitlines(keepends=True) if line.endswith(b"\n")]
    count = next((line.pages for line in lines if line.pages), 0)
    pages = tuple(line for line in lines if line.text is not None)
    why = next((line.why for line in lines if line.why), "")
    if not why and len(pages) < min(max(count, 1), pdf.MOST_PAGES):
        why = "reading it took too long" if late else "it is too large or damaged"
    return Reading(count, pages, why)


def _shown(document: Document, found: Reading, where: str) -> Parts:
    name = f"{document.name}, " if document.name else ""
    pages = f"{found.count} page{'s' if found.count != 1 else ''}"
    parts: list[Text | Image] = []
    lines = [f"[Document: {name}application/pdf, {pages}]"]
    for number, page in enumerate(found.pages, start=1):
        lines += [f"[Page {number}]", page.text or ""]
        if page.picture is not None:
            parts += [
                Text("\n".join(lines), apart=True),
                Image(Inline(page.picture, "image/png"), field=f"{where}.pages[{number - 1}]"),
            ]
            lines = []
    if (last := len(found.pages)) < found.count:
        why = found.why or "the document is too long"
        lines.append(f"[Pages {last + 1} to {found.count} left out: {why}.]")
    return (*parts, Text("\n".join(lines), apart=True)) if lines else tuple(parts)
