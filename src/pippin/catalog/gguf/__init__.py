"""Turns GGUF files into MLX model folders. Begin with `importer.py`.

`reader.py` finds tensors and metadata in an untrusted file, and reads the metadata by type.
`architectures.py` maps each architecture's tensors to MLX's names and makes its config.json; `tokenizer.py` makes
tokenizer.json; `weights.py` turns a tensor into MLX's arrays and writes them.
"""

from pippin.catalog.gguf.importer import import_gguf

__all__ = ["import_gguf"]
