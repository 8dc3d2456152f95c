"""APIs over WebSockets: one connection on which a client asks many times.

Begin with `channel.py`, a connection whose messages are read while an answer is written; `responses.py` serves the
Responses API on it. What an API means is its dialect's, as over HTTP; here is only how its events travel.
"""
