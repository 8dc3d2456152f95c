"""The command `pippin`, the only room that prints: a file for each verb in `verbs/`.

Begin with `main.py`. `local.py` opens the catalog for verbs that need no server; `running.py` finds the running server
for the others.
"""
