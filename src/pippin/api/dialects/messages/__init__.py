"""Anthropic's Messages: decodes a body into a request, and encodes events as a message or a stream of its blocks.

Begin with `dialect.py`: the structs that are sent and documented, the body, and the request made from it. `content.py`
and `tools.py` read the two large fields of a body.
"""
