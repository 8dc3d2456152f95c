"""`pippin run`: a conversation with a model in the terminal.

Begin with `session.py`, which reads what is typed and does it. `conversation.py` is what was said, `attachments.py`
makes message parts of files, `entry.py` reads from the terminal, `client.py` streams answers from the server,
`display.py` shows them, `commands.py` understands `/words`, `choice.py` picks a model, and `server.py` finds a server
or starts one.
"""
