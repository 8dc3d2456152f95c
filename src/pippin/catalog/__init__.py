"""What models are on this machine: their names, facts, sizes, downloads and imports. Begin with `catalog.py`."""

from pippin.catalog.catalog import Catalog
from pippin.catalog.entry import CatalogEntry
from pippin.catalog.footprint import footprint
from pippin.catalog.info import read_info
from pippin.catalog.roots import CatalogRoots, default_roots

__all__ = ["Catalog", "CatalogEntry", "CatalogRoots", "default_roots", "footprint", "read_info"]
