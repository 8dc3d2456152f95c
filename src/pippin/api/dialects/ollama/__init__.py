"""Ollama's generation API: `/api/chat` and `/api/generate`, whose streams are lines of JSON.

Begin with `dialect.py`: the answers of both, their bodies, and the requests made from them. The rest of Ollama's API
(lists of models, embeddings, pulling) is in `api/routes/ollama.py`.
"""
