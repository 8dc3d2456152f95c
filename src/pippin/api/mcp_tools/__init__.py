"""What Pippin offers as an MCP server: tools that ask the models, and tools that manage them.

Begin with `tool.py`, what a tool is; `toolbox.py` lists and calls tools. Each of the other files holds tools of one
kind. The protocol itself is in `pippin/mcp/endpoint.py`.
"""
