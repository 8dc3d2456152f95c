"""Reads a PDF, in a process of its own: run as a script, isolated, by `documents.py`, which may kill it at any time.

A hostile file can cost no more than this process may take. Standard input is the file, the argument is how many pages
are wanted as pictures too. Each line of standard output is a JSON object: first `{"pages": 3}`, or `{"why": "..."}` if
the file can't be read, then `{"text": "...", "picture": "..."}` for each page, with a picture as PNG in base64.
"""

import base64
import io
import json
import math
import re
import resource
import sys
import time
from typing import Any, Final

SECONDS: Final = 20.0
"""No page is begun after that; the caller allows somewhat more before it ends the process."""

MOST_MEMORY: Final = 2 << 30
MOST_PAGES: Final = 500
MOST_CHARACTERS: Final = 2_000_000
PICTURE_PIXELS: Final = 1_200_000
LONGEST_SIDE: Final = 2_000


def main() -> None:
    bound_resources()
    began, data = time.monotonic(), sys.stdin.buffer.read()
    try:
        pages = pages_of(data)
        tell(pages=len(pages))
        pictures = Pictures(data, int(sys.argv[1]))
        left = MOST_CHARACTERS
        for number in range(min(len(pages), MOST_PAGES)):
            if left <= 0 or time.monotonic() - began > SECONDS:
                break
            text = text_of(pages, number)[:left]
            left -= len(text)
            tell(text=text, picture=pictures.of(number))
    except Exception as error:  # readers have no common error: a damaged file may raise anything
        encrypted = type(error).__name__ in ("PermissionError", "DependencyError", "FileNotDecryptedError")
        own = str(error) if type(error) is ValueError else "it is damaged or cut off"
        tell(why="it is encrypted" if encrypted else own)


def bound_resources() -> None:
    bounds = {resource.RLIMIT_CPU: int(SECONDS) + 5}
    if sys.platform == "linux":  # elsewhere it is not enforced, or counts what is only reserved
        bounds[resource.RLIMIT_AS] = MOST_MEMORY
    for kind, most in bounds.items():
        _, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def tell(**said: Any) -> None:
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


def pages_of(data: bytes) -> Any:
    """The pages; each is read when it is asked for. Raises what pypdf raises."""
    from pypdf import PdfReader

    reader = PdfReader(io.BytesIO(data), strict=False)
    # Many files are encrypted with no more than the empty password, and open by themselves everywhere.
    if reader.is_encrypted and not reader.decrypt(""):
        raise PermissionError
    if len(reader.pages) == 0:
        raise ValueError("it has no pages")
    return reader.pages


def text_of(pages: Any, number: int) -> str:
    try:
        text = str(pages[number].extract_text())
    except Exception:  # as in `main`; the other pages may be whole
        return "[This page can't be read.]"
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]", "", text).strip()


class Pictures:
    """Draws the first pages, if pypdfium2 is installed."""

    def __init__(self, data: bytes, most: int) -> None:
        self._pages: Any = ()
        self._most = most
        if most:
            try:
                from pypdfium2 import PdfDocument

                self._pages = PdfDocument(data)
            except Exception:  # it may be missing, or take a file for damaged that pypdf can read
                self._most = 0

    def of(self, number: int) -> str | None:
        if number >= min(self._most, len(self._pages)):
            return None
        try:
            page = self._pages[number]
            width, height = page.get_size()
            scale = min(math.sqrt(PICTURE_PIXELS / (width * height)), LONGEST_SIDE / max(width, height))
            drawn = io.BytesIO()
            page.render(scale=scale).to_pil().convert("RGB").save(drawn, "PNG")
        except Exception:  # as in `main`
            return None
        return base64.b64encode(drawn.getvalue()).decode()


if __name__ == "__main__":
    main()
