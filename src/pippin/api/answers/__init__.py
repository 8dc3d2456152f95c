"""One request body being answered, from its runs to its last byte. Begin with `answer.py`."""
