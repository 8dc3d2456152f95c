"""Bytes: the listening server, bounds of the protocol, bodies, forms, streams. Begin with `protocol.py`."""
