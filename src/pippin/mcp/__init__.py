"""MCP on both sides: connects to the operator's servers and their tools, and serves Pippin's own tools.

Begin with `tools.py`, the operator's servers, whose tools models may call. `endpoint.py` is the other side; it serves a
`toolbox.py`.
"""

from pippin.mcp.tools import ToolServers

__all__ = ["ToolServers"]
