"""Image generation and editing."""

from pippin.engines.images.engine import open_engine, open_preparer

__all__ = ["open_engine", "open_preparer"]
