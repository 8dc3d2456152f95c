"""What several dialects have alike; nothing here knows of a dialect.

Begin with `fields.py`, which reads a body by its contract (`body_types.py` walks the types of one). Fields of bodies:
`engine_fields`, and `openai_fields` built on them; `media` and
`mcp_tools` for what stands inside of them. Answers: `frames` of server-sent events, `openai_answers` (errors, usage,
log probabilities, chunks), and `sealed_text` for what a client is to bring back.
"""
