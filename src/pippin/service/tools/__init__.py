"""Requests for which Pippin itself calls the tools of MCP servers. Begin with `loop.py`."""
