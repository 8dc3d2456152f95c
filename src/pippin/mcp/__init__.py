"""The client of MCP servers. Begin with `tools.py`, the operator's servers, whose tools models may call."""

from pippin.mcp.tools import ToolServers

__all__ = ["ToolServers"]
