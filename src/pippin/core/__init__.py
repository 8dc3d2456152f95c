"""The words that cross Pippin's doors: frozen structs that import nothing but msgspec, and no I/O.

Begin with `requests.py` (what a client asks) and `events.py` (what a worker answers); `completion.py` folds events
into a whole answer. `parameters.py` has every sampling parameter, `errors.py` every kind of refusal and its status,
`link.py` what crosses the socket to a worker, `decoding.py` how bytes are read as structs.
"""
