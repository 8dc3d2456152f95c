"""The child process of one model: orders in, one frame of events out for each engine step.

Begin with `main.py`, then `loop.py`.
"""
