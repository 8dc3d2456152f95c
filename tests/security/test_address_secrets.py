"""Addresses with a password, a key or a token in them: of MCP servers, searches, proxies, hubs, servers. No error, no
line of the log, no command line and no answer holds what is secret of them."""

import io
import json
import time
from pathlib import Path

import httpx
import psutil
import pytest

from pippin.cli.main import main
from pippin.core.logs import without_secrets
from tests.running_server import running_process
from tests.service.doubles import write_script

SECRET = "t0k3n-xyzzy"
NOBODY = "127.0.0.1:9"
WITH_PASSWORD = f"http://user:{SECRET}@{NOBODY}"
WITH_KEY = f"http://{NOBODY}/mcp?key={SECRET}"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"at https://u:{SECRET}@host/a?b={SECRET}&c={SECRET}.", "at https://***@host/a?b=***&c=***"),
        (f"http://{SECRET}@host:80/", "http://***@host:80/"),
        (f"http://u:a/{SECRET}@b@host/", "http://***@host/"),
        (f"`ws://h/?api-key={SECRET}`, `x`", "`ws://h/?api-key=***`, `x`"),
        ("http://127.0.0.1:8000/v1/models is here? a=b", "http://127.0.0.1:8000/v1/models is here? a=b"),
        (
            "Try it: curl http://[::1]:8000/v1 -d '{\"a\": 1}'",
            "Try it: curl http://[::1]:8000/v1 -d '{\"a\": 1}'",
        ),
    ],
)
def test_what_is_secret_of_an_address_is_not_shown(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


def test_hiding_them_takes_linear_time() -> None:
    for text in ("://a:" * 50_000, "?a" * 100_000, "&a=" * 60_000, "://" * 60_000):
        began = time.process_time()
        without_secrets(text)
        assert time.process_time() - began < 1.0


@pytest.mark.parametrize(
    "words",
    [
        ("serve", "--web-search", f"https://u:{SECRET}@host/"),
        ("serve", "--web-search", f"https://host/?q={{query}}&key={SECRET}", "--port", "none"),
        ("config", "show", "--web-search", f"https://host/?q={{query}}&key={SECRET}"),
        ("config", "show", "--api-key", SECRET),
        ("serve", f"https://u:{SECRET}@huggingface.co/org/name"),
        ("pull", f"https://u:{SECRET}@huggingface.co/org/name"),
        ("ps", "--server", WITH_PASSWORD),
        ("ps", "--server", WITH_KEY),
        ("run", "--server", WITH_PASSWORD, "hello"),
        ("doctor", "--security", "--server", WITH_PASSWORD),
        ("doctor", "--security", "--server", f"http://u:{SECRET}@{NOBODY}x"),
        ("search", "tiny"),
        ("fit", "org/name"),
    ],
)
def test_no_command_prints_a_secret_of_an_address(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIPPIN_HOME", str(tmp_path))
    monkeypatch.setenv("HTTPS_PROXY", WITH_PASSWORD)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    main(words)
    printed = capfd.readouterr()
    assert printed.out + printed.err
    assert SECRET not in printed.out + printed.err


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("mcp_config", f'mcpServers:\n  a: {{url: "http://u:{SECRET}@h/?k={SECRET}"\n  b: ['),
        ("mcp_config", f"mcpServers:\n  a: {{type: 'http://u:{SECRET}@h/?k={SECRET}'}}"),
        ("mcp_config", f"mcpServers:\n  'http://u:{SECRET}@h': {{url: 'http://h'}}"),
        ("mcp_config", f"mcpServers:\n  a: {{url: 'ws://u:{SECRET}@h', headers: {{x: [{SECRET}]}}}}"),
        ("config", f"api_keys: {{a: {SECRET}}}"),
        ("config", f"api_keys: [[{SECRET}]]"),
        ("config", f"api_keys: [{SECRET}\nport: 1"),
        ("config", f"web_search: https://u:{SECRET}@h/"),
        ("api_key_file", f"alice: {{key: {SECRET}, rate_limit: x}}"),
        ("api_key_file", f"alice: {{key: {SECRET}\nbob: x"),
    ],
)
def test_no_error_of_a_file_tells_a_secret_in_it(
    option: str, text: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file.yaml"
    file.write_text(text)
    file.chmod(0o600)
    model = write_script(tmp_path, {"say": "x"})
    assert main(("serve", str(model), "--port", "0", f"--{option.replace('_', '-')}", str(file))) != 0
    printed = capfd.readouterr()
    assert str(file) in printed.err
    assert SECRET not in printed.out + printed.err


def test_a_server_that_can_not_reach_them_tells_nobody_of_their_secrets(tmp_path: Path) -> None:
    servers = {
        "password": {"url": f"{WITH_PASSWORD}/mcp"},
        "key": {"url": WITH_KEY},
        "events": {"url": WITH_KEY, "type": "sse"},
        "header": {"url": f"http://{NOBODY}", "headers": {"authorization": SECRET}},
        "program": {"command": "false", "args": [WITH_KEY], "env": {"TOKEN": SECRET}},
    }
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": servers}))
    model = write_script(tmp_path, {"say": "x"})
    variables = {
        "PIPPIN_WEB_SEARCH": f"{WITH_PASSWORD}/?q={{query}}&key={SECRET}",
        "HTTP_PROXY": WITH_PASSWORD,
        "HTTPS_PROXY": WITH_PASSWORD,
        "HF_ENDPOINT": WITH_PASSWORD,
        "HF_TOKEN": SECRET,
    }
    words = (str(model), "--mcp-config", str(config), "--log-level", "debug")
    told: list[str] = []
    with (
        running_process(tmp_path, *words, variables=variables) as server,
        httpx.Client(base_url=server.address, timeout=60) as client,
    ):
        told += [
            client.get(f"/v1/{path}").text for path in ("mcp/servers", "mcp/tools", "status", "settings")
        ]
        told += [client.get(path).text for path in ("/v1/models", "/v1/models/model", "/metrics", "/health")]
        told.append(client.post("/v1/models/pull", json={"model": "org/name", "stream": False}).text)
        told.append(client.post("/v1/mcp/execute", json={"tool": "a", "server": "key"}).text)
        picture = {"type": "image_url", "image_url": {"url": f"{WITH_PASSWORD}/?key={SECRET}"}}
        for parts in ([picture], [{"type": "text", "text": "x"}]):
            body = {"model": "model", "messages": [{"role": "user", "content": parts}]}
            told.append(client.post("/v1/chat/completions", json=body | {"web_search_options": {}}).text)
        own = psutil.Process(server.process.pid)
        told += [" ".join(each.cmdline()) for each in (own, *own.children(recursive=True))]
    assert all(told)
    assert [text for text in told if SECRET in text] == []
    log = (tmp_path / "server.log").read_text()
    assert "The MCP server password can't be used" in log
    assert SECRET not in log
