"""Declares every option once, with name, type, default and help. Only this room reads the environment.

Begin with `load.py`, which merges file, environment and flags. `options/` declares the options, `compat/` maps the
names of the replaced servers to them, `values.py` parses a value or refuses it in one line, and `reload.py` changes the
options of a running server.
"""
