"""`pippin agent`: coding agents pointed at a server of Pippin.

Begin with `table.py`, which knows each agent as data: its command, its variables, its files and its arguments.
`setup.py` fills a row of the table in for one server and model, and writes its files into Pippin's own folder.
"""
