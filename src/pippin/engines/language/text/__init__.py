"""Text to tokens and back. Begin with `tokenizer.py`."""
