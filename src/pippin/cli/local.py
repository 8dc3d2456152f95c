"""The catalog of this machine, for verbs that need no server."""

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pippin.config import environment
from pippin.config.load import load
from pippin.config.settings import Settings, Sources

if TYPE_CHECKING:
    from pippin.catalog import Catalog, CatalogRoots

OPTIONS: Final = ("config", "model_dirs", "offline")
"""Options that affect the catalog."""


def settings_of(parsed: Namespace) -> Settings:
    return load(Sources(flags=tuple(parsed.given)))


def open_catalog(settings: Settings) -> "Catalog":
    from pippin.catalog import Catalog

    return Catalog(settings.server, roots())


def roots() -> "CatalogRoots":
    from pippin.catalog import default_roots

    return default_roots(environment.variables(), Path.home())
