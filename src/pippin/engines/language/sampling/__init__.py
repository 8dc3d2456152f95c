"""How the next token of every sequence is chosen. Begin with `sampler.py`."""
