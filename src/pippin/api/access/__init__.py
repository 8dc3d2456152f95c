"""Who may come in, how much they may ask for, and how refusals are encoded. Begin with `guards.py`."""
