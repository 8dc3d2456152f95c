"""Text to tokens and back. Begin with `tokenizer.py`.

- `tokenizer.py`: the model's tokenizer, its special tokens and its chat templates, and the text of one stream of
  tokens, exact to the byte.
- `literals.py`: prompts are encoded within a length, and special tokens that a client's text spells as text.
"""
