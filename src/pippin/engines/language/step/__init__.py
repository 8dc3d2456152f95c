"""One step of the language engine, from waiting sequences to events. Begin with `engine.py`."""
