"""Writes the generated pages of docs/: `python scripts/write_docs.py`."""

from pathlib import Path

from pippin.api.pages import api_page
from pippin.cli.pages import cli_page
from pippin.config.pages import configuration_page, migrating_page

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = {
    "configuration.md": configuration_page,
    "migrating.md": migrating_page,
    "cli.md": cli_page,
    "api.md": api_page,
}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), "utf-8")
        print(f"docs/{name}")
