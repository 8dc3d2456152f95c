"""Tools of MCP servers on Realtime connections: Pippin calls them, and the client sees the answer."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.live_server import live_server
from tests.api.sockets.realtime.client import Client, client_of, said

pytest.importorskip("mcp")

SERVER = Path(__file__).parents[3] / "mcp" / "example_server.py"
SCRIPT: dict[str, Any] = {
    "rules": [
        {"when": {"tool_result": "5"}, "say": "It is five."},
        {"when": {"tool_result": "Error executing"}, "say": "It failed."},
        {"when": {"user": "add"}, "calls": [{"name": "example__add", "arguments": {"a": 2, "b": 3}}]},
        {
            "when": {"user": "twice"},
            "calls": [
                {"name": "example__add", "arguments": {"a": 2, "b": 3}},
                {"name": "example__add", "arguments": {"a": 5, "b": 5}},
            ],
        },
        {"when": {"user": "fail"}, "calls": [{"name": "example__fail", "arguments": {}}]},
    ]
}
TOOLS: Any = [{"type": "mcp", "server_label": "example", "require_approval": "never"}]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of one server for all tests, which waits for its tools however slow the machine is."""
    folder = tmp_path_factory.mktemp("tools")
    config = folder / "mcp.json"
    servers = {"example": {"command": sys.executable, "args": [str(SERVER)], "allowed_tools": ["*"]}}
    config.write_text(json.dumps({"mcpServers": servers}))
    with pytest.MonkeyPatch.context() as patch, live_server(folder, SCRIPT, mcp_config=config) as found:
        patch.setattr("pippin.mcp.connection.PATIENCE", 60.0)
        yield found


@pytest.fixture
def talk(address: str) -> Iterator[Client]:
    with client_of(address) as found:
        found.sets(output_modalities=["text"], tools=TOOLS)
        yield found


@pytest.mark.parametrize(
    ("asked", "answer"), [("add", "It is five."), ("twice", "It is five."), ("fail", "It failed.")]
)
def test_an_answer_that_took_server_tools_is_one_message(talk: Client, asked: str, answer: str) -> None:
    talk.says(asked)
    events = talk.respond()
    assert said(events) == answer
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["message"]
    assert events[-1]["response"]["status"] == "completed"


def test_servers_of_the_clients_own_are_refused(talk: Client) -> None:
    tools = [{"type": "mcp", "server_label": "mine", "server_url": "https://example.com/mcp"}]
    assert "server_url" in talk.sets(tools=tools)["param"]
