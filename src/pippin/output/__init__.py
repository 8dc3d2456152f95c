"""Reading generated text: reasoning, tool calls, text. Begin with `reader.py`."""
