"""APIs over WebSockets, where a client sends many requests on one connection.

Begin with `channel.py`, a connection whose messages are read while an answer is written; `responses.py` serves the
Responses API on it. Requests are decoded and answers encoded by the dialect, as over HTTP; this room transports events.
"""
