"""The wire: HTTP in, HTTP out. Begin with `app.py`, then `handler.py`."""
