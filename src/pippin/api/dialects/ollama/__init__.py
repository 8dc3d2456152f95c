"""Ollama's generation API: `/api/chat` and `/api/generate`, whose streams are lines of JSON.

Begin with `dialect.py`, the two dialects. `body.py` reads what both bodies share (options, thinking, formats, times),
`messages.py` reads conversations and tools, and `encode.py` encodes answers. The rest of Ollama's API (lists of
models, embeddings, pulling) is in `api/routes/ollama.py`.
"""
