"""What the flags, variables and keys of the replaced servers do in Pippin: one file for each server.

Begin with `terms.py`, the words of a description and their translation; `servers.py` lists the servers.
"""
