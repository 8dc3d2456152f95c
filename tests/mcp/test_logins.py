"""Logins at MCP servers: granted once in a browser, kept, renewed; or none needed, where Pippin is a client itself."""

import asyncio
import json
import stat
import time
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from pippin.cli.main import main
from pippin.config.errors import ConfigError
from pippin.config.mcp_file import load_mcp_file
from pippin.mcp.connection import CallFailed, Connection
from tests.mcp.guarded_server import CLIENT, Guarded, guarded_server


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PIPPIN_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def server() -> Iterator[Guarded]:
    with guarded_server() as opened:
        yield opened


@pytest.fixture
def file(server: Guarded, tmp_path: Path) -> str:
    return write(tmp_path, url=f"{server.origin}/mcp")


@pytest.fixture(autouse=True)
def browser(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that were opened in a browser, whose person grants what is asked."""
    opened: list[str] = []

    def open_(address: str) -> bool:
        opened.append(address)
        httpx.get(address, follow_redirects=True)
        return True

    monkeypatch.setattr(webbrowser, "open", open_)
    return opened


def write(folder: Path, **entry: Any) -> str:
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"far": entry}}))
    return str(path)


async def settled(connection: Connection) -> None:
    async with asyncio.timeout(30):  # the first to come imports the library
        while connection.state == "connecting":  # noqa: ASYNC110 - what is awaited sets no event
            await asyncio.sleep(0.02)


def told(file: str) -> str:
    """What a tool of the server says to Pippin while it serves, or else why it can't be connected."""

    async def ask() -> str:
        connection = Connection(load_mcp_file(file).servers[0])
        connection.start()
        try:
            await settled(connection)
            return connection.error or (await connection.call("get_secret", {}))[0]
        finally:
            await connection.close()

    return asyncio.run(ask())


def test_one_login_is_enough_for_the_server(
    server: Guarded, file: str, home: Path, browser: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert "`pippin mcp login far`" in told(file)
    assert main(["mcp", "login", "far", "--mcp-config", file]) == 0
    assert "Logged in at far, which has 1 tools." in capsys.readouterr().out
    assert len(browser) == 1
    assert told(file) == told(file) == "It is 42."
    assert server.grants == ["authorization_code"]
    [kept] = (home / "mcp-logins").iterdir()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


def test_a_login_is_renewed_where_it_was_given_also_after_a_restart(server: Guarded, file: str) -> None:
    server.lifetime = 1
    assert main(["mcp", "login", "far", "--mcp-config", file]) == 0
    for _ in range(2):
        time.sleep(1.1)
        assert told(file) == "It is 42."
    # A machine that is slow for more than a token's life renews it once more.
    assert len(server.grants) >= 3
    assert server.grants == ["authorization_code", *["refresh_token"] * (len(server.grants) - 1)]


def test_a_login_that_ended_asks_for_another(
    server: Guarded, file: str, browser: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["mcp", "login", "far", "--mcp-config", file]) == 0
    server.valid = set()
    server.grants.append("of somebody else")
    assert "`pippin mcp login far`" in told(file)
    assert main(["mcp", "login", "far", "--mcp-config", file]) == 0
    assert told(file) == "It is 42."
    assert main(["mcp", "logout", "far", "--mcp-config", file]) == 0
    assert "`pippin mcp login far`" in told(file)


def test_the_list_tells_where_somebody_has_logged_in(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mcp", "list", "--mcp-config", file]) == 0
    assert "no login" in capsys.readouterr().out
    assert main(["mcp", "login", "far", "--mcp-config", file]) == 0
    capsys.readouterr()
    assert main(["mcp", "list", "--mcp-config", file]) == 0
    assert "logged in" in capsys.readouterr().out


def test_a_person_who_refuses_is_heard(
    server: Guarded, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server.says_no = True
    assert main(["mcp", "login", "far", "--mcp-config", file]) == 1
    assert "Access was not granted: access_denied." in capsys.readouterr().err


def test_the_address_can_be_brought_from_another_machines_browser(
    file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def paste(prompt: str) -> str:
        address = next(word for word in capsys.readouterr().out.split() if word.startswith("http"))
        return str(httpx.get(address).headers["location"])

    monkeypatch.setattr("builtins.input", paste)
    assert main(["mcp", "login", "far", "--paste", "--mcp-config", file]) == 0
    assert told(file) == "It is 42."


def test_a_client_of_its_own_needs_no_person(server: Guarded, tmp_path: Path, browser: list[str]) -> None:
    oauth = {
        "grant": "client_credentials",
        "client_id": CLIENT[0],
        "client_secret": CLIENT[1],
        "issuer": f"{server.origin}/authority",
    }
    assert told(write(tmp_path, url=f"{server.origin}/mcp", oauth=oauth)) == "It is 42."
    assert server.grants == ["client_credentials"]
    assert not browser
    server.valid = set()
    wrong = write(tmp_path, url=f"{server.origin}/mcp", oauth=oauth | {"client_secret": "guessed"})
    assert "did not accept the client in `oauth`" in told(wrong)


def test_a_secret_is_shown_to_no_other_authority(server: Guarded, tmp_path: Path) -> None:
    oauth = {
        "grant": "client_credentials",
        "client_id": CLIENT[0],
        "client_secret": CLIENT[1],
        "issuer": "http://127.0.0.1:9/mine",
    }
    assert "`issuer`" in told(write(tmp_path, url=f"{server.origin}/mcp", oauth=oauth))
    assert not server.grants


def test_a_call_that_wants_more_rights_says_how_to_give_them(server: Guarded, file: str) -> None:
    assert main(["mcp", "login", "far", "--mcp-config", file]) == 0

    async def ask() -> None:
        connection = Connection(load_mcp_file(file).servers[0])
        connection.start()
        try:
            await settled(connection)
            server.valid = set()
            with pytest.raises(CallFailed, match="wants a login with more rights: `pippin mcp login far`"):
                await connection.call("get_secret", {})
        finally:
            await connection.close()

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ({"command": "x", "oauth": {}}, "oauth is for servers at an address"),
        ({"url": "http://x", "headers": {"Authorization": "x"}, "oauth": {}}, "exclude each other"),
        (
            {"url": "http://x", "oauth": {"grant": "client_credentials", "client_id": "x"}},
            "needs `client_id`",
        ),
        (
            {"url": "http://x", "oauth": {"grant": "workload_identity"}},
            "'workload_identity' - at `\\$.oauth.grant`",
        ),
        ({"url": "http://x", "oauth": {"private_key_file": "x"}}, "unknown field `private_key_file`"),
        ({"url": "http://x", "oauth": {"grunt": 1}}, "grunt"),
    ],
)
def test_an_oauth_that_can_not_be_used_is_refused(entry: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load_mcp_file(write(tmp_path, **entry))
