"""Mends of mlx-vlm's families, each file under its name there. Begin with `gemma3n.py`."""
