"""Real MCP servers over stdio and HTTP: connected, called, limited, lost and found again."""

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from pippin.config.mcp_file import McpServer, McpSettings
from pippin.core.conversation import Toolset
from pippin.core.errors import ServerError
from pippin.mcp.connection import Connection, RemoteTool
from pippin.mcp.tools import LONGEST_RESULT, ToolServers, looks_up, may_use, offered_name

TOOLS = ("add", "ask", "environment", "sleep", "fail", "long", "die")
EXAMPLE = str(Path(__file__).with_name("example_server.py"))


def example(**facts: Any) -> McpServer:
    given = {"name": "demo", "transport": "stdio", "command": sys.executable, "args": (EXAMPLE,)}
    return McpServer(**(given | {"allowed_tools": TOOLS} | facts))


@asynccontextmanager
async def servers(*given: McpServer, **settings: Any) -> AsyncIterator[ToolServers]:
    opened = ToolServers(McpSettings(servers=given or (example(),), **settings))
    opened.start()
    await until(lambda: all(connection.state != "connecting" for connection in opened.connections))
    try:
        yield opened
    finally:
        await opened.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - what is awaited sets no event
            await asyncio.sleep(0.02)


def test_a_connection_ends_where_an_error_of_the_library_hides_its_cancellation() -> None:
    class Refused(Connection):
        @asynccontextmanager
        async def connected(self) -> AsyncIterator[None]:
            try:
                await asyncio.sleep(60)
                yield
            except asyncio.CancelledError as error:
                raise ConnectionError from error

    async def main() -> None:
        connection = Refused(example())
        connection.start()
        await asyncio.sleep(0)
        async with asyncio.timeout(5):
            await connection.close()

    asyncio.run(main())


def test_a_stdio_servers_tools_are_listed_and_called() -> None:
    async def main() -> None:
        async with servers() as opened:
            assert [connection.state for connection in opened.connections] == ["connected"]
            assert "demo__add" in {tool.name for tool in opened.tools()}
            for name in ("demo__add", "add"):
                assert (await opened.execute(name, {"a": 2, "b": 3})).text == "5"

    asyncio.run(main())


@contextmanager
def http_server(transport: str) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, EXAMPLE, transport, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield port
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of one server for all tests of what Pippin makes of its answers."""
    with http_server("streamable-http") as port:
        address = f"http://127.0.0.1:{port}/mcp"
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            assert time.monotonic() < deadline, "it does not listen"
            time.sleep(0.02)
        yield address


def far(address: str, **facts: Any) -> McpServer:
    """The server behind the address."""
    given = {"name": "far", "transport": "http", "url": address, "allowed_tools": TOOLS}
    return McpServer(**(given | facts))


@pytest.mark.parametrize(
    ("transport", "kind", "path"), [("streamable-http", "http", "mcp"), ("sse", "sse", "sse")]
)
def test_an_http_server_is_found_once_it_answers(
    transport: str, kind: Any, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pippin.mcp.connection.RETRY", (0.2, 0.5))

    async def main() -> None:
        with http_server(transport) as port:
            server = McpServer(
                name="far", transport=kind, url=f"http://127.0.0.1:{port}/{path}", allowed_tools=TOOLS
            )
            async with servers(server) as opened:
                await until(lambda: bool(opened.tools()))
                assert (await opened.execute("far__add", {"a": 1, "b": 1})).text == "2"

    asyncio.run(main())


def test_the_servers_own_secrets_are_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIPPIN_API_KEYS", "sk-secret")
    monkeypatch.setenv("HF_TOKEN", "hf-secret")

    async def main() -> None:
        async with servers(example(env={"GIVEN": "1"})) as opened:
            names = (await opened.execute("environment", {})).text.split()
            assert {"GIVEN", "PATH"} <= set(names)
            assert not {"PIPPIN_API_KEYS", "HF_TOKEN"} & set(names)

    asyncio.run(main())


def test_what_goes_wrong_in_a_call_is_its_result(address: str) -> None:
    async def main() -> None:
        async with servers(far(address, timeout=1)) as opened:
            late = await opened.execute("sleep", {"seconds": 30})
            assert late.is_error
            assert "no result within" in late.text
        async with servers(far(address)) as opened:  # which may take its time
            failed = await opened.execute("fail", {})
            assert failed.is_error
            assert "Error executing tool fail" in failed.text
            asked = await opened.execute("ask", {})
            assert asked.is_error
            assert "Elicitation not supported" in asked.text
            assert (await opened.execute("add", {"a": "x"})).is_error
            [add] = [tool for tool in opened.tools() if tool.remote.name == "add"]
            for text in ("[1]", "{", "[" * 100_000, '{"a": NaN'):
                assert (await opened.call_with_text(add, text)).is_error

    asyncio.run(main())


def test_a_long_result_is_cut(address: str) -> None:
    async def main() -> None:
        async with servers(far(address)) as opened:
            text = (await opened.execute("long", {"size": LONGEST_RESULT + 100})).text
            assert len(text) < LONGEST_RESULT + 100
            assert text.endswith("[100 more characters were cut off]")

    asyncio.run(main())


def test_a_server_that_dies_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pippin.mcp.connection.RETRY", (0.1, 0.2))

    async def main() -> None:
        async with servers(example(timeout=10)) as opened:
            assert (await opened.execute("die", {})).is_error
            await until(lambda: not opened.tools())
            await until(lambda: bool(opened.tools()))
            assert (await opened.execute("add", {"a": 1, "b": 2})).text == "3"

    asyncio.run(main())


def test_closing_ends_the_servers_processes() -> None:
    async def main() -> None:
        before = psutil.Process().children(recursive=True)
        async with servers():
            children = [each for each in psutil.Process().children(recursive=True) if each not in before]
            assert children
        assert not [child for child in children if child.is_running()]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        (example(command="/nonexistent/secret-path"), "not found"),
        (example(command=sys.executable, args=("-c", "pass")), "it ended or answered wrongly"),
        (example(args=("-c", "import time; time.sleep(60)"), greeting_timeout=0.5), "did not answer"),
        (McpServer(name="far", transport="http", url="http://127.0.0.1:9/x", timeout=2), "ended or answered"),
    ],
)
def test_a_server_that_can_not_be_used_says_why_and_tells_no_paths(
    server: McpServer, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with servers(server) as opened:
            [connection] = opened.connections
            await until(lambda: connection.state != "connecting")
            assert connection.state == "failed"
            assert reason in (connection.error or "")
            assert opened.tools() == []
            assert await opened.offered((Toolset(server.name),)) == {}

    with caplog.at_level(logging.DEBUG, logger="pippin"):
        asyncio.run(main())
    assert "secret-path" not in caplog.text
    assert os.path.dirname(sys.executable) not in caplog.text


class AsksForLogin(BaseHTTPRequestHandler):
    """As MCP servers answer that want OAuth: 401, and where it is explained."""

    def do_POST(self) -> None:
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Bearer resource_metadata="http://127.0.0.1/.well-known/x"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST

    def log_message(self, format: str, *values: Any) -> None:
        """Nothing is printed."""


@pytest.mark.parametrize("transport", ["http", "sse"])
def test_a_server_that_asks_for_a_login_is_named_so(transport: Any) -> None:
    async def main() -> str:
        address = f"http://127.0.0.1:{strict.server_port}/mcp"
        async with servers(McpServer(name="far", transport=transport, url=address, timeout=10)) as opened:
            [connection] = opened.connections
            assert connection.state == "failed"
            return connection.error or ""

    with ThreadingHTTPServer(("127.0.0.1", 0), AsksForLogin) as strict:
        thread = threading.Thread(target=strict.serve_forever, daemon=True)
        thread.start()
        try:
            said = asyncio.run(main())
        finally:
            strict.shutdown()
            thread.join(10)
    assert "asks for a login (OAuth)" in said
    assert "`headers`" in said


LOGGED = """
import asyncio, sys
from pippin.cli.logs import configure_logging
from pippin.config.mcp_file import McpServer, McpSettings
from pippin.config.options.server import ServerOptions
from pippin.mcp.tools import ToolServers
import logging

async def main():
    urls = {kind: f"http://127.0.0.1:{port}/{path}?key=sk-secret" for kind, port, path in (
        ("http", sys.argv[1], "mcp"), ("sse", sys.argv[1], "nothing"))}
    servers = ToolServers(McpSettings(servers=tuple(
        McpServer(name=f"far-{kind}", transport=kind, url=url) for kind, url in urls.items())))
    servers.start()
    while any(connection.state == "connecting" for connection in servers.connections):
        await asyncio.sleep(0.05)
    await servers.close()

configure_logging(ServerOptions(log_level="debug"))
asyncio.run(main())
logging.shutdown()
"""


def test_an_address_with_a_secret_in_it_is_not_logged_by_the_libraries_that_call_it(address: str) -> None:
    port = str(urlsplit(address).port)
    done = subprocess.run(
        [sys.executable, "-c", LOGGED, port], capture_output=True, text=True, timeout=60, check=True
    )
    assert "far-http is connected" in done.stderr
    assert "far-sse can't be used" in done.stderr
    assert "sk-secret" not in done.stderr + done.stdout


def test_allow_lists_hold_for_offers_and_for_calls_by_hand(address: str) -> None:
    async def main() -> None:
        listed = far(address, name="demo", allowed_tools=("add", "fail"), denied_tools=("fail",))
        async with servers(listed) as opened:
            assert [tool.name for tool in opened.tools()] == ["demo__add"]
            for name in ("fail", "demo__fail", "environment", "run_command", "../add"):
                with pytest.raises(ServerError):
                    await opened.execute(name, {})

    asyncio.run(main())


@pytest.mark.parametrize(
    ("facts", "settings", "there"),
    [
        ({"allowed_tools": None}, {}, False),
        ({"allowed_tools": None}, {"risky_tools": ("run_command",)}, True),
        ({"allowed_tools": None}, {"risky_tools": ("demo__run_command",)}, True),
        ({"allowed_tools": ("run_command",)}, {}, True),
        ({"allowed_tools": ("*",)}, {}, True),
        ({"allowed_tools": ("*",), "denied_tools": ("run_command",)}, {}, False),
        ({"allowed_tools": ("add",)}, {"risky_tools": ("run_command",)}, False),
    ],
)
def test_tools_that_run_commands_must_be_listed(
    address: str, facts: dict[str, Any], settings: Any, there: bool
) -> None:
    async def main() -> None:
        async with servers(far(address, name="demo", **facts), **settings) as opened:
            assert ("demo__run_command" in {tool.name for tool in opened.tools()}) is there

    asyncio.run(main())


def test_a_request_may_narrow_what_it_is_offered_and_must_name_what_there_is(address: str) -> None:
    async def main() -> None:
        async with servers(far(address, name="a"), far(address, name="b")) as opened:
            assert set(await opened.offered((Toolset("a", ("add",)), Toolset("b", ("b__fail",))))) == {
                "a__add",
                "b__fail",
            }
            assert {"a__add", "b__add"} <= set(await opened.offered((Toolset("*"),)))
            with pytest.raises(ServerError, match="no MCP server 'c'"):
                await opened.offered((Toolset("c"),))
            with pytest.raises(ServerError, match="several servers"):
                await opened.execute("add", {})

    asyncio.run(main())


def test_offered_names_are_names_that_every_dialect_takes() -> None:
    assert offered_name("a", "b/c d") == "a__b_c_d"
    assert len(offered_name("a" * 32, "b" * 100)) == 64


@pytest.mark.parametrize(
    "name",
    "sh kill rmdir open_process run_code run_python zsh run_command executeCode python.exec evaluate add write_file "
    "search_and_replace findThenDelete delete_file getaway listen reader 删除 __ 1".split(),
)
def test_a_tool_that_nobody_spoke_for_is_not_offered(name: str) -> None:
    assert not looks_up(name)


@pytest.mark.parametrize(
    "name", "get_weather read_file listDirectory search get-current-time fetch list_tables read_query".split()
)
def test_a_tool_that_looks_something_up_needs_no_word(name: str) -> None:
    assert looks_up(name)


@pytest.mark.parametrize(
    ("name", "read_only", "trusted", "there"),
    [
        ("add", True, True, True),
        ("add", True, False, False),
        ("add", None, True, False),
        ("get_time", None, False, True),
        ("get_time", False, False, False),
        ("get_time", False, True, False),
    ],
)
def test_what_a_server_says_of_its_tools_opens_them_only_where_it_is_trusted(
    name: str, read_only: bool | None, trusted: bool, there: bool
) -> None:
    tool = RemoteTool(name=name, description="", parameters={}, read_only=read_only)
    assert may_use(example(allowed_tools=None, trusted=trusted), tool, frozenset(), f"demo__{name}") is there


def test_the_operator_is_told_once_what_waits_for_a_word(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with servers(far(address, allowed_tools=None)) as opened:
            assert opened.tools() == []
            assert opened.tools() == []

    with caplog.at_level(logging.WARNING, logger="pippin"):
        asyncio.run(main())
    (told,) = [record.getMessage() for record in caplog.records if "not offered" in record.getMessage()]
    assert "add, ask, die, environment, fail, long, run_command, sleep" in told
    assert "allowed_tools" in told
