"""Rerankers."""

from pippin.engines.reranking.engine import open_engine, open_preparer

__all__ = ["open_engine", "open_preparer"]
