"""A real MCP server over stdio, or HTTP where a port is given, with tools that behave well and badly."""

import os
import sys
import time

from mcp.server.mcpserver import MCPServer
from mcp_types import CallToolResult, ElicitRequest, ElicitRequestFormParams, InputRequiredResult

server = MCPServer("example")


@server.tool()
def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return str(a + b)


@server.tool()
def environment() -> str:
    """Names the variables that this server sees."""
    return " ".join(sorted(os.environ))


@server.tool()
def sleep(seconds: float) -> str:
    time.sleep(seconds)
    return "awake"


@server.tool()
def fail() -> str:
    raise ValueError("it is broken")


@server.tool()
def ask() -> CallToolResult | InputRequiredResult:
    """Asks a person first."""
    form = ElicitRequestFormParams(
        message="Who are you?",
        requested_schema={"type": "object", "properties": {"name": {"type": "string"}}},
    )
    return InputRequiredResult(input_requests={"name": ElicitRequest(params=form)})


@server.tool()
def long(size: int) -> str:
    return "x" * size


@server.tool()
def die() -> str:
    os._exit(3)


@server.tool()
def run_command(command: str) -> str:
    """Would run anything."""
    return "ran " + command


if __name__ == "__main__":
    match sys.argv[1:]:
        case [transport, port]:
            server.run(transport, host="127.0.0.1", port=int(port))
        case _:
            server.run()
