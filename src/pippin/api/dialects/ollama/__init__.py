"""Ollama's generation API: `/api/chat` and `/api/generate`, whose streams are lines of JSON.

Begin with `dialect.py`: the bodies of both, their conversations and tools, and the requests made from them. `encode.py`
encodes answers. The rest of Ollama's API (lists of models, embeddings, pulling) is in `api/routes/ollama.py`.
"""
