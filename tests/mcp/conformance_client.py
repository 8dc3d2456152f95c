"""The client that the conformance suite of MCP runs: Pippin's own connection, with somebody who grants everything.

It is started with the address of the suite's server; the scenario and its facts are in the environment.
"""

import asyncio
import json
import os
import sys
import tempfile
from typing import Any
from urllib.parse import urlsplit

import httpx

from pippin.config.mcp_file import McpServer, OAuth
from pippin.mcp.browser import browser
from pippin.mcp.connection import CallFailed, Connection, RemoteTool

CLIENT_METADATA = "https://conformance-test.local/client-metadata.json"


def granting(address: str) -> None:
    """A browser whose person grants what is asked: the suite's authorization server asks nobody."""
    httpx.get(address, follow_redirects=True)


def issuer_of(url: str) -> str:
    """Whom the server names as its authorization server, which an operator is told when a client is set up."""
    parts = urlsplit(url)
    found = httpx.get(
        f"{parts.scheme}://{parts.netloc}/.well-known/oauth-protected-resource{parts.path}"
    ).json()
    return str(found["authorization_servers"][0])


def oauth_of(scenario: str, facts: dict[str, Any], url: str) -> OAuth | None:
    if scenario.startswith("auth/client-credentials"):
        return OAuth(
            grant="client_credentials",
            client_id=facts["client_id"],
            client_secret=facts["client_secret"],
            issuer=issuer_of(url),
        )
    if "client_id" in facts:
        return OAuth(client_id=facts["client_id"], client_secret=facts["client_secret"])
    if scenario == "auth/basic-cimd":
        return OAuth(client_metadata_url=CLIENT_METADATA)
    return None


async def main(url: str, scenario: str, facts: dict[str, Any]) -> None:
    oauth = oauth_of(scenario, facts, url)
    server = McpServer(name="suite", transport="http", url=url, oauth=oauth, trusted=True, timeout=10)
    async with browser(granting) as person:
        connection = Connection(server, person)
        async with connection.connected():
            for name, arguments in calls_of(facts, connection.tools):
                try:
                    print(name, await connection.call(name, arguments))
                except CallFailed as error:
                    print(name, error)


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
    with tempfile.TemporaryDirectory() as home:
        os.environ["PIPPIN_HOME"] = home
        given = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
        asyncio.run(main(sys.argv[-1], os.environ.get("MCP_CONFORMANCE_SCENARIO", ""), given))
