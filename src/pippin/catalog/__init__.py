"""The models on this machine: their names, properties, sizes, downloads and imports.

Begin with `catalog.py`, which resolves names. `scan.py` and `others.py` find folders, `info.py` and `kinds.py` read the
files of a model's folder, `footprint.py` estimates its memory, `download.py` fetches, `gguf/` imports.
"""

from pippin.catalog.catalog import Catalog
from pippin.catalog.entry import CatalogEntry
from pippin.catalog.footprint import footprint
from pippin.catalog.info import read_info
from pippin.catalog.others import default_roots
from pippin.catalog.scan import CatalogRoots

__all__ = ["Catalog", "CatalogEntry", "CatalogRoots", "default_roots", "footprint", "read_info"]
