"""Every option as a typed field with its default and help, in three structs: start, server, model.

Begin with `declaration.py`, which reads flags, variables and help from the structs.
"""
