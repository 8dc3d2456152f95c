"""`pippin run`: a conversation with a model in the terminal.

Begin with `session.py`, which handles what the user types, shows the answers and holds the messages.
`attachments.py` turns files into message parts, `entry.py` reads from the terminal, `client.py` streams answers from
the server, and `server.py` finds or starts one.
"""
