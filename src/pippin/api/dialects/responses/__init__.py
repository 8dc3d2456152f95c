"""OpenAI's Responses: decodes a body into a request, and encodes events as a response or a stream of its items.

Begin with `dialect.py`, which makes a request from a body; `items.py` and `tools.py` read its two large fields.
`answer.py` builds the response, and `output.py` its items; both have the structs that are sent and documented.
"""
