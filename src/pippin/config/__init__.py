"""Every option once: its name, type, default and help. The only room that reads the environment.

Begin with `load.py`, which merges file, environment and flags. `options/` declares the options, `compat/` tells what
the replaced servers called them, `values.py` reads a value or refuses it in one line, `reload.py` changes the options
of a running server.
"""
