"""Google's Gemini API: decodes a body into a request, and encodes events as an answer or a stream of its pieces.

Begin with `dialect.py`: the structs that are sent and documented, the bodies, and the requests made from them.
`content.py` reads conversations, `tools.py` tools and Google's schemas. Counting tokens, embeddings and the list of
models are in `api/routes/gemini.py`.
"""
