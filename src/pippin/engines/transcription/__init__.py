"""Speech to text."""

from pippin.engines.transcription.engine import open_engine, open_preparer

__all__ = ["open_engine", "open_preparer"]
