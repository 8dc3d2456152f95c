"""OpenAI's Completions. Begin with `dialect.py`."""
