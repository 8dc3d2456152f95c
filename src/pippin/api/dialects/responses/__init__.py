"""OpenAI's Responses: how a body becomes a request, and events become a response or a stream of its items.

Begin with `dialect.py`, the request that is made of a body. `body.py` has the fields of a body; `items.py` and
`tools.py` read the two large ones. `answer.py` has the structs that are sent and documented; `encode.py` builds the
response of them, and `output.py` its items. `compaction.py` is `/v1/responses/compact`, a dialect of its own.
"""
