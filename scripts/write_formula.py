"""Writes the Homebrew formula of a release: `python scripts/write_formula.py dist/pippin-1.2.3.tar.gz > pippin.rb`."""

import hashlib
import re
import sys
from pathlib import Path
from typing import Final

TEMPLATE: Final = Path(__file__).resolve().parent.parent / "packaging" / "homebrew" / "pippin.rb.in"


def formula(source: Path) -> str:
    """The formula for this source distribution. Raises `ValueError` for another file."""
    named = re.fullmatch(r"pippin-([\w.]+)\.tar\.gz", source.name)
    if named is None:
        raise ValueError(f"{source.name} is not called pippin-VERSION.tar.gz")
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    return TEMPLATE.read_text("utf-8").replace("@VERSION@", named[1]).replace("@SHA256@", digest)


if __name__ == "__main__":
    sys.stdout.write(formula(Path(sys.argv[1])))
