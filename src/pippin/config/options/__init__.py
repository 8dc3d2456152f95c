"""Every option as a typed field with its default and help. Begin with `declaration.py`."""
