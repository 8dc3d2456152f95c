"""Parts of pages that are written by scripts, between marks; the words around them are the pages' own."""

from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
CLOSING: Final = "<!-- End -->\n"


def marked(name: str, source: str, part: str) -> str:
    """A page of docs/ with a fresh part, whose opening mark names its source. Raises `ValueError` where the marks are
    missing."""
    opening = f"<!-- Written by `make docs` from {source} -->\n"
    before, _, rest = (DOCS / name).read_text("utf-8").partition(opening)
    _, closing, after = rest.partition(CLOSING)
    if not closing:
        raise ValueError(f"{name} has no {opening.strip()} followed by {CLOSING.strip()}")
    return before + opening + part + CLOSING + after
