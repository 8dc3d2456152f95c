"""OpenAI's Responses: decodes a body into a request, and encodes events as a response or a stream of its items.

Begin with `dialect.py`, which makes a request from a body; `items.py` and `tools.py` read its two large fields.
`answer.py` has the structs that are sent and documented; `encode.py` builds the response from them, and `output.py` its
items. `compaction.py` is `/v1/responses/compact`, a separate dialect.
"""
