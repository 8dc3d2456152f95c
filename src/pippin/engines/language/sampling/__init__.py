"""Chooses the next token of every sequence. Begin with `sampler.py`."""
