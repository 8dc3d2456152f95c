"""The server under mixed work for an hour or more: it must end where it began. Begin with `__main__.py`."""
