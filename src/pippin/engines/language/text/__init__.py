"""Text to tokens and back. Begin with `tokenizer.py`.

- `tokenizer.py`: the model's tokenizer, its special tokens and its chat templates, and the text of one stream of
  tokens, exact to the byte.
- `literals.py`: special tokens that a client's text spells are encoded as text.
- `length.py`: refuses a text that is too long while it is read.
"""
