"""OpenAI's Chat Completions. Begin with `dialect.py`."""
