"""Requests that may wait: files of them, and the batches that answer them; both outlive a restart.

Begin with `runner.py`, which answers the lines of batches while nobody else needs the model; `store.py` keeps files,
batches and lines. How they look on the wire is in `api/routes/files.py`, `batches.py` and `message_batches.py`.
"""
