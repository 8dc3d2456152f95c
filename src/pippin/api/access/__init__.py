"""Who may come in, how much they may ask for, and how a refusal is drawn. Begin with `guards.py`."""
