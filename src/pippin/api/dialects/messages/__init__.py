"""Anthropic's Messages. Begin with `dialect.py`."""
