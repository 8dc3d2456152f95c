"""The client that the conformance suite of MCP runs: Pippin's own connection.

It is started with the address of the suite's server; the facts of the scenario are in the environment.
"""

import asyncio
import json
import os
import sys
from typing import Any

from pippin.config.mcp_file import McpServer
from pippin.mcp.connection import Connection, RemoteTool


async def main(url: str, facts: dict[str, Any]) -> None:
    connection = Connection(McpServer(name="suite", transport="http", url=url, trusted=True, timeout=10))
    async with connection.connected():
        for name, arguments in calls_of(facts, connection.tools):
            print(name, await connection.call(name, arguments))


def calls_of(facts: dict[str, Any], tools: tuple[RemoteTool, ...]) -> list[tuple[str, dict[str, Any]]]:
    """The calls that the scenario names, or one of each tool; a tool that echoes a schema is given the other one's."""
    if "toolCalls" in facts:
        return [(call["name"], call["arguments"]) for call in facts["toolCalls"]]
    if len(tools) == 2 and "schema" in tools[1].parameters.get("properties", {}):
        return [(tools[1].name, {"schema": tools[0].parameters})]
    return [(tool.name, arguments_of(tool.parameters)) for tool in tools]


def arguments_of(schema: dict[str, Any]) -> dict[str, Any]:
    """The plainest arguments that a schema takes."""
    plain: dict[str, Any] = {"number": 1.5, "integer": 2, "boolean": True, "array": [], "object": {}}
    fields = schema.get("properties", {})
    return {
        name: plain.get(fields.get(name, {}).get("type"), "text") for name in schema.get("required", fields)
    }


if __name__ == "__main__":
    given = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    asyncio.run(main(sys.argv[-1], given))
