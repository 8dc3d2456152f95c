"""One worker process and the socket to it. Begin with `supervisor.py`."""
