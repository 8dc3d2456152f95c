"""The operator's MCP servers: connections to them, and their tools."""

from pippin.mcp.tools import ToolServers

__all__ = ["ToolServers"]
