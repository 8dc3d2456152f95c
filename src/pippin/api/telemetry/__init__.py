"""How requests and engines are counted, timed and traced. Begin with `observer.py`."""
