"""Models owned by one process and used by others: how they are lent, and what else the processes tell each other.

Begin with `messages.py`.
"""
