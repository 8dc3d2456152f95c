"""OpenAI's Chat Completions: how a body becomes a request, and events become chunks and answers.

Begin with `dialect.py`, the body, its messages, and the request made of them. `tools.py` reads the tools of a body;
`encode.py` draws.
"""
