"""Which models are in memory. Begin with `pool.py`."""
