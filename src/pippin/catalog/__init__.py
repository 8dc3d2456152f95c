"""The models on this machine: their names, properties, sizes, downloads and imports.

Begin with `catalog.py`, which resolves names. `scan.py` finds folders, `info.py` and `kinds.py` read the
files of a model's folder, `footprint.py` estimates its memory, `download.py` fetches, `gguf/` imports.
"""

from pippin.catalog.catalog import Catalog, CatalogEntry
from pippin.catalog.footprint import footprint
from pippin.catalog.info import read_info
from pippin.catalog.scan import CatalogRoots, default_roots

__all__ = ["Catalog", "CatalogEntry", "CatalogRoots", "default_roots", "footprint", "read_info"]
