"""Workers on the machines of a Ray cluster: Ray knows the machines and places each worker where memory is free.

To the server such a worker is a command whose input and output are the worker's link, as with `ssh`.
Begin with `bridge.py`, that command. `host.py` is its other end, an actor; a TLS connection joins the two.
`placement.py` is the command that holds places for a group of ranks, and `needs.py` builds the
server's calls to both. Needs the extra `cluster`.
"""
