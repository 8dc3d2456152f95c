"""The client of MCP servers. Begin with `tools.py`, the operator's servers, whose tools models may call."""
