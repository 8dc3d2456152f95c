"""OpenAI's Chat Completions: how a body becomes a request, and events become chunks and answers.

Begin with `dialect.py`, the body and the request made of it. `messages.py` and `tools.py` read the two large fields of
a body; `encode.py` draws.
"""
