"""The file of MCP servers in the forms that people have."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from pippin.config.errors import ConfigError
from pippin.config.mcp_file import McpServer, load_mcp_file


def written(folder: Path, content: Any, name: str = "mcp.json") -> str:
    path = folder / name
    path.write_text(json.dumps(content) if name.endswith("json") else yaml.safe_dump(content))
    return str(path)


def only(path: str, **variables: str) -> McpServer:
    [server] = load_mcp_file(path, variables).servers
    return server


@pytest.mark.parametrize("name", ["mcp.json", "mcp.yaml"])
def test_vllm_mlx_form_is_read(tmp_path: Path, name: str) -> None:
    content = {
        "servers": {
            "files": {"transport": "stdio", "command": "npx", "args": ["-y", "x"], "env": {"A": "b"}}
        },
        "max_tool_calls": 3,
        "default_timeout": 7,
        "allowed_high_risk_tools": ["run_command"],
    }
    settings = load_mcp_file(written(tmp_path, content, name), {})
    assert settings.servers == (
        McpServer(
            name="files", transport="stdio", command="npx", args=("-y", "x"), env={"A": "b"}, timeout=7
        ),
    )
    assert settings.max_tool_calls == 3
    assert settings.risky_tools == ("run_command",)


def test_the_form_of_desktop_clients_is_read(tmp_path: Path) -> None:
    content = {"mcpServers": {"time": {"command": "uvx", "args": ["mcp-server-time"], "autoApprove": ["x"]}}}
    assert only(written(tmp_path, content)).command == "uvx"


@pytest.mark.parametrize(
    ("entry", "transport"),
    [
        ({"url": "http://127.0.0.1:1/mcp"}, "http"),
        ({"type": "http", "url": "https://x/mcp"}, "http"),
        ({"type": "streamable-http", "url": "https://x/mcp"}, "http"),
        ({"httpUrl": "https://x/mcp"}, "http"),
        ({"transport": "sse", "url": "https://x/sse"}, "sse"),
        ({"command": "x"}, "stdio"),
    ],
)
def test_a_transport_is_named_or_seen(tmp_path: Path, entry: dict[str, Any], transport: str) -> None:
    assert only(written(tmp_path, {"mcpServers": {"x": entry}})).transport == transport


@pytest.mark.parametrize("off", [{"disabled": True}, {"enabled": False}])
def test_a_server_can_be_switched_off(tmp_path: Path, off: dict[str, bool]) -> None:
    assert load_mcp_file(written(tmp_path, {"servers": {"x": {"command": "x"} | off}}), {}).servers == ()


def test_variables_are_put_in(tmp_path: Path) -> None:
    entry = {"url": "http://x/", "headers": {"authorization": "Bearer ${TOKEN}"}, "env": {"B": "${NO:-b}"}}
    server = only(written(tmp_path, {"mcpServers": {"x": entry}}), TOKEN="t")
    assert server.headers == {"authorization": "Bearer t"}
    assert server.env == {"B": "b"}


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ({"servers": {"x": {}}}, "command must name a program"),
        ({"servers": {"x": {"command": "a\0b"}}}, "command must name a program"),
        ({"servers": {"x": {"command": "/bin/bash", "args": ["-c", "x"]}}}, "is a shell"),
        ({"servers": {"x": {"command": "C:\\\\Windows\\\\cmd.exe"}}}, "is a shell"),
        ({"servers": {"../x": {"command": "x"}}}, "name must be"),
        ({"servers": {"x": {"url": "file:///etc/passwd"}}}, "http"),
        ({"servers": {"x": {"command": "x", "transport": "stdoi"}}}, "Did you mean `stdio`"),
        (
            {"servers": {"x": {"url": "https://x/mcp", "oauth": {"client_id": "x"}}}},
            "oauth is not supported: let another program log in",
        ),
        (
            {"servers": {"x": {"command": "x", "skip_security_validation": True}}},
            "skip_security_validation is not supported: leave it out",
        ),
        ({"servers": {"x": {"command": "x", "timeout": -1}}}, "timeout"),
        ({"servers": {"x": "npx"}}, "x"),
        ({"servers": {"x": {"command": "${MISSING}"}}}, "MISSING is not set"),
        ({"server": {}}, "server"),
        ({"max_tool_calls": 0}, "max_tool_calls"),
        ([1], "mapping"),
    ],
)
def test_a_wrong_file_is_one_clear_line(tmp_path: Path, content: Any, part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_mcp_file(written(tmp_path, content), {})
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_shell_can_be_allowed_by_name(tmp_path: Path) -> None:
    entry = {"command": "bash", "args": ["server.sh"], "allow_shell": True}
    assert only(written(tmp_path, {"servers": {"x": entry}})).command == "bash"


def test_a_file_that_anyone_may_write_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, {"servers": {}})
    Path(path).chmod(0o666)
    with pytest.raises(ConfigError, match="anyone may write"):
        load_mcp_file(path, {})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_mcp_file(str(tmp_path / "none.json"), {})
