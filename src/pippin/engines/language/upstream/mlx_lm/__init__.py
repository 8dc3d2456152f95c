"""Mends of mlx-lm's architectures, each file under its name there. Begin with `gemma2.py`."""
