"""Responses and conversations that are kept for later turns. Begin with `history.py`."""
