"""A real MCP server over stdio with one tool, which finds a page."""

from mcp.server.mcpserver import MCPServer

server = MCPServer("search")


@server.tool()
def find(query: str) -> str:
    """Searches the web."""
    return f"For {query}:\n\nPippin\nhttps://docs.example.org/pippin\nA server."


if __name__ == "__main__":
    server.run()
