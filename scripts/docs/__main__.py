"""Writes the generated pages of docs/: `python -m scripts.docs`."""

from functools import partial
from pathlib import Path

from pippin.config.compat.servers import servers
from scripts.docs.api_page import api_page
from scripts.docs.cli_page import cli_page
from scripts.docs.configuration_pages import configuration_page, migrating_page, server_page
from scripts.docs.engine_page import engine_page
from scripts.docs.folder_page import folder_page
from scripts.docs.sampling_page import sampling_page

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = {
    "configuration.md": configuration_page,
    "migrating.md": migrating_page,
    **{f"migrating/{server.name}.md": partial(server_page, server) for server in servers().values()},
    "cli.md": cli_page,
    "api.md": api_page,
    "sampling.md": sampling_page,
    "engine.md": engine_page,
    "models-in-memory.md": folder_page,
}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), "utf-8")
        print(f"docs/{name}")
