"""Ollama's API of generation: `/api/chat` and `/api/generate`, whose streams are lines of JSON.

Begin with `dialect.py`, the two dialects. `body.py` reads what both bodies share (options, thinking, formats, times),
`messages.py` reads conversations and tools, `encode.py` draws. What else Ollama's clients ask for (lists of models,
embeddings, pulling) is in `api/routes/ollama.py`.
"""
