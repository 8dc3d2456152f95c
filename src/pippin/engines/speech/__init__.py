"""Text to speech."""

from pippin.engines.speech.engine import open_engine, open_preparer

__all__ = ["open_engine", "open_preparer"]
