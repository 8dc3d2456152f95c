"""Text to tokens and back. Begin with `tokenizer.py`.

- `tokenizer.py`: the model's tokenizer, its special tokens and its chat templates.
- `literals.py`: special tokens that a client's text spells are encoded as text.
- `detokenizer.py`: tokens of one stream to text, exact to the byte.
- `stopping.py`: stop strings across the borders of tokens.
"""
