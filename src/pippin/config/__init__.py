"""Every option, once: its name, type, default and help. The only room that reads the environment.

Begin with `settings.py`, then `load.py`.
"""
