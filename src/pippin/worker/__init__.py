"""The child process of one model: it reads orders and sends one frame of events for each engine step.

Begin with `main.py`, then `loop.py`.
"""
