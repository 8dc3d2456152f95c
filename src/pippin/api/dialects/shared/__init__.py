"""Code that several dialects share; nothing here depends on a dialect.

Begin with `fields.py`, which decodes a body by its contract (`body_types.py` walks the body's types). `engine_fields`
holds the fields of every dialect; `media` and `tools` read the contents of some fields. `openai` is what OpenAI's
two completion APIs share, in requests and answers. For answers, `frames` writes server-sent events, and `sealed_text`
encodes text that a client sends back later.
"""
