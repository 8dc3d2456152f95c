"""A real MCP server over stdio: what stands for `@modelcontextprotocol/server-filesystem`."""

from mcp.server.mcpserver import MCPServer

server = MCPServer("filesystem")


@server.tool()
def list_directory(path: str) -> str:
    """Lists a folder."""
    return f"{path}/file1.txt {path}/file2.txt"


if __name__ == "__main__":
    server.run()
