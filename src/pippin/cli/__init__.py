"""The command `pippin`, the only room that prints. Begin with `main.py`."""
