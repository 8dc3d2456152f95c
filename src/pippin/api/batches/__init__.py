"""Requests that may wait: files of requests, and the batches that answer them; both outlive a restart.

Begin with `runner.py`, which answers the lines of batches while nobody else needs the model; `store.py` keeps files,
batches and lines. Their wire formats are in `api/routes/batches.py`.
"""
