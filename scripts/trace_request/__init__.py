"""Counts the files and lines of Pippin that one streamed chat request executes. Begin with `__main__.py`."""
