"""Every option as a typed field with default and help, in three structs: start, server, model.

Begin with `declaration.py`, which derives flags, variables and help from the structs.
"""
