"""How the flags, variables and keys of the replaced servers work in Pippin: one file per server.

Begin with `terms.py`, which describes and translates them; `servers.py` lists the servers.
"""
