"""What several dialects have alike; nothing here knows of a dialect.

Begin with `fields.py`, which reads a body by its contract (`body_types.py` walks the types of one). `engine_fields`
are those of every dialect; `media` and `mcp_tools` read what stands inside of some. `openai` is what OpenAI's two
completion APIs share, asked and answered. Answers: `frames` of server-sent events, and `sealed_text` for what a client
is to bring back.
"""
