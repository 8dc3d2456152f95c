"""OpenAI's Chat Completions: decodes a body into a request, and encodes events as chunks and answers.

Begin with `dialect.py`: the answers, the body, its messages, and the request made from them. `tools.py` reads the tools
of a body.
"""
