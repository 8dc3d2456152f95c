"""Responses and conversations kept for later turns, and runs in the background. Begin with `response_store.py`."""
