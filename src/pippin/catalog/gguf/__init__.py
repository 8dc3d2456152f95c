"""Turns GGUF files into MLX model folders. Begin with `importer.py`.

`reader.py` finds tensors and metadata in a file that nobody trusts, and `metadata.py` reads the metadata by type.
`architectures.py` knows how each architecture's tensors are called in MLX and what its config.json says;
`tokenizer.py` makes tokenizer.json; `weights.py` makes MLX's arrays of one tensor; `safetensors_writer.py` writes them.
"""

from pippin.catalog.gguf.importer import import_gguf

__all__ = ["import_gguf"]
