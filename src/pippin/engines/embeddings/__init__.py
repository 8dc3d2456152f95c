"""Embedding models. Begin with `engine.py`."""

from pippin.engines.embeddings.engine import open_engine, open_preparer

__all__ = ["open_engine", "open_preparer"]
