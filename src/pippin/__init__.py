"""Pippin serves MLX models behind the OpenAI and Anthropic APIs.

Begin with `core/requests.py` and `core/events.py`, the words that all rooms share; `docs/architecture.md` is the map.
"""

__version__ = "0.1.0"
