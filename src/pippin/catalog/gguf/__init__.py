"""Turns GGUF files into MLX model folders. Begin with `importer.py`."""

from pippin.catalog.gguf.importer import import_gguf

__all__ = ["import_gguf"]
