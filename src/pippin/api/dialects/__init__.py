"""The APIs that are spoken: how each reads a body and writes an answer, with no HTTP in it. Begin with `base.py`."""
