"""Shared vocabulary of the rooms: frozen structs that import nothing but msgspec, and no I/O.

Begin with `requests.py` (what a client asks for) and `events.py` (what a worker answers); `completion.py` folds events
into a whole answer. `parameters.py` lists every sampling parameter, `errors.py` every kind of refusal with its status,
`link.py` the messages on the socket to a worker, and `decoding.py` reads bytes as structs.
"""
