"""What Pippin offers as an MCP server: tools that ask the models, and tools that manage them.

Begin with `tool.py`, what a tool is; `toolbox.py` lists and calls them. Each of the other files is tools of one kind.
The protocol itself is the business of `pippin/mcp/endpoint.py`.
"""
