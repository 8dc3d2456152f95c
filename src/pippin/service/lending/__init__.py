"""Models that one process owns and others use: how they are lent, and what else the processes tell each other.

Begin with `messages.py`.
"""
