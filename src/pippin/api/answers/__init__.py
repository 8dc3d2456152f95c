"""A request to a model, from its body to the last byte of its answer. Begin with `handler.py`, then `answer.py`."""
