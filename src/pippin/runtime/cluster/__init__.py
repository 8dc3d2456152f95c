"""Workers on the machines of a Ray cluster: Ray knows the machines, and places each worker where its memory is free.

For the server such a worker is a command whose input and output are the worker's link, as `ssh` is.
Begin with `bridge.py`, that command; `host.py` is its other end, an actor; between the two goes a TLS connection of
their own (`pairing.py`). `placement.py` is the command that holds places for a group of ranks, and `commands.py` how
the server calls both. Needs the extra `cluster`.
"""
