"""Several API processes behind one address: one that owns everything, and others that answer chats beside it.

Begin with `owner.py`.
"""
