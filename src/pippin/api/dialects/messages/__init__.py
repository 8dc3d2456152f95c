"""Anthropic's Messages: how a body becomes a request, and events become a message or a stream of its blocks.

Begin with `dialect.py`, the body and the request made of it. `content.py` and `tools.py` read the two large fields of a
body. `answer.py` has the structs that are sent and documented; `encode.py` builds them.
"""
