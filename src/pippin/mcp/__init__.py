"""MCP on both sides: connections to the operator's servers and their tools, and Pippin as a server itself.

Begin with `tools.py`, the operator's servers, whose tools models may call. `endpoint.py` is the other side; what it
serves is a `toolbox.py`.
"""

from pippin.mcp.tools import ToolServers

__all__ = ["ToolServers"]
