"""OpenAI's Responses. Begin with `dialect.py`."""
