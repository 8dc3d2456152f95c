"""Responses and conversations that are kept for later turns, and runs in the background. Begin with `history.py`."""
