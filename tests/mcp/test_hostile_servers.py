"""MCP servers over HTTP that lie, send without end, or leave an answer out: each costs its own calls at most."""

import asyncio
import gzip
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import psutil

from pippin.config.mcp_file import McpServer
from pippin.mcp.connection import LONGEST_NAME
from tests.mcp.test_servers import servers, until

SCHEMA = {"type": "object", "properties": {}}
MIB = 1 << 20


class Hostile(BaseHTTPRequestHandler):
    """Speaks the protocol up to the tools, and then does what it is not supposed to."""

    protocol_version = "HTTP/1.1"
    released = threading.Event()
    names: tuple[str, ...] = ("endless", "packed", "fine")
    deaf = False  # to the farewell

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        match asked:
            case {"method": "initialize", "params": params}:
                self.say(
                    asked,
                    {
                        "protocolVersion": params["protocolVersion"],
                        "capabilities": {"tools": {}},
                        "serverInfo": {"name": "hostile", "version": "1"},
                    },
                )
            case {"method": "tools/list"}:
                self.say(asked, {"tools": [{"name": name, "inputSchema": SCHEMA} for name in self.names]})
            case {"method": "tools/call", "params": {"name": name}}:
                getattr(self, name)(asked)
            case {"id": _}:
                self.send(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "error": UNKNOWN}).encode())
            case _:
                self.send(b"", 202)

    def do_GET(self) -> None:
        self.send(b"", 405)

    def do_DELETE(self) -> None:
        if self.deaf:
            self.released.wait(60)
        self.send(b"")

    def endless(self, asked: Any) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        piece = b" " * MIB
        try:
            while not self.released.is_set():
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        except OSError:
            self.close_connection = True

    def packed(self, asked: Any) -> None:
        self.send(gzip.compress(b" " * (100 * MIB), 1), encoding="gzip")

    def fine(self, asked: Any) -> None:
        self.say(asked, text_result("fine"))

    def say(self, asked: Any, result: Any) -> None:
        self.send(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}).encode())

    def send(self, body: bytes, status: int = 200, encoding: str | None = None) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.send_header("mcp-session-id", "one")
        if encoding is not None:
            self.send_header("content-encoding", encoding)
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:
            self.close_connection = True

    def log_message(self, format: str, *values: Any) -> None:
        """Nothing is printed."""


UNKNOWN = {"code": -32601, "message": "no such method"}


def text_result(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}


@contextmanager
def hostile(**facts: Any) -> Iterator[McpServer]:
    handler = type("Handler", (Hostile,), {"released": threading.Event(), **facts})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            address = f"http://127.0.0.1:{server.server_port}/mcp"
            yield McpServer(name="far", transport="http", url=address, timeout=20, allowed_tools=("*",))
        finally:
            handler.released.set()
            server.shutdown()
            thread.join(10)


def test_an_answer_without_end_fails_its_call_and_takes_no_memory() -> None:
    async def main() -> int:
        before = psutil.Process().memory_info().rss
        async with servers(far) as opened:
            for tool in ("endless", "packed"):
                result = await opened.execute(tool, {})
                assert result.is_error, tool
                assert "failed" in result.text
            assert (await opened.execute("fine", {})).text == "fine"
        return int(psutil.Process().memory_info().rss) - before

    with hostile() as far:
        assert asyncio.run(main()) < 60 * MIB


def test_a_server_that_hears_no_farewell_does_not_keep_this_one_from_stopping() -> None:
    async def main() -> float:
        async with servers(far) as opened:
            [connection] = opened.connections
            await until(lambda: connection.state == "connected")
            began = time.monotonic()
        assert connection.state == "stopped"
        return time.monotonic() - began

    with hostile(deaf=True) as far:
        assert asyncio.run(main()) < 10


def test_tools_whose_names_cannot_be_shown_are_left_out() -> None:
    async def main() -> list[str]:
        async with servers(far) as opened:
            return [tool.remote.name for tool in opened.tools()]

    with hostile(names=("fine", "x" * (LONGEST_NAME + 1), "two\nlines", "\x1b[2J")) as far:
        assert asyncio.run(main()) == ["fine"]
