"""`pippin agent`: coding agents pointed at a Pippin server.

Begin with `table.py`, which describes each agent as data: its command, variables, files and arguments. `setup.py` fills
in a row of the table for one server and model, and writes the files into Pippin's own folder.
"""
