"""What the output must look like: grammars and the token masks that they allow. Begin with `grammar.py`."""
