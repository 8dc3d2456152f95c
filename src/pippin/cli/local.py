"""What verbs do on this machine without a server: its catalog, and fetching what is missing in it."""

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from pippin.cli.terminal import progress
from pippin.config import environment
from pippin.config.load import load
from pippin.config.settings import Settings

if TYPE_CHECKING:
    from pippin.catalog import Catalog, CatalogRoots
    from pippin.core.models import ModelInfo


def settings_of(parsed: Namespace) -> Settings:
    return load(parsed.given)


def open_catalog(settings: Settings) -> "Catalog":
    from pippin.catalog import Catalog

    environment.tell_the_hub_nothing()
    return Catalog(settings.server, roots())


def roots() -> "CatalogRoots":
    from pippin.catalog import default_roots

    return default_roots(environment.variables(), Path.home())


def fetched(catalog: "Catalog", name: str, title: str) -> "ModelInfo":
    """The model of a name, downloaded first if it is not here. Raises `ServerError`."""
    import asyncio  # slow to import

    with progress(title, bytes_counted=True) as tell:
        return asyncio.run(catalog.ensure(name, tell, by_operator=True))
