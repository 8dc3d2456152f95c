"""How a model reads an ordinary text, and what would make it read better. Begin with `perplexity.py`.

- `rivals.py`: other settings; `layers.py`: a layer left out; `opening.py`: a line end before its answers.
"""
