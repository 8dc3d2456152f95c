"""What the flags, variables and keys of the four replaced servers do in Pippin: one file each.

Begin with `servers.py`.
"""
