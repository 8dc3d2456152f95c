"""The wire: HTTP in, HTTP out. Begin with `app.py`, then `answers/handler.py`."""
