"""The command `pippin`, the only room that prints: its verbs are in `verbs/`.

Begin with `main.py`. `local.py` opens the catalog for verbs that need no server; `running.py` finds the running server
for the others.
"""
