"""The messages of `/mcp` on the wire: bounds, errors, sessions, and who may come in."""

import asyncio
import json
import sys
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from pippin.api.access.exchange import open_exchange
from pippin.api.mcp_tools.toolbox import CANCELLED, RunningCalls, key_of
from pippin.mcp.toolbox import ToolAnswer
from tests.api.fakes import FakeService, application, client_of

HEADERS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
LIST = {"jsonrpc": "2.0", "id": "list", "method": "tools/list"}


def send(
    message: Any, *, path: str = "/mcp", headers: dict[str, str] | None = None, **options: Any
) -> httpx.Response:
    content = message if isinstance(message, bytes) else json.dumps(message).encode()

    async def main() -> httpx.Response:
        async with client_of(application(FakeService(), **options)) as client:
            return await client.post(path, content=content, headers=HEADERS | (headers or {}))

    return asyncio.run(main())


def result_of(reply: httpx.Response) -> Any:
    assert reply.status_code == 200, reply.text
    [data] = [line[6:] for line in reply.text.splitlines() if line.startswith("data: ")]
    return json.loads(data)


@pytest.mark.parametrize("path", ["/mcp", "/v1/mcp"])
def test_a_client_that_says_hello_is_given_a_session(path: str) -> None:
    replies = [send(HELLO, path=path) for _ in range(2)]
    assert result_of(replies[0])["result"]["serverInfo"]["name"] == "pippin"
    ids = {reply.headers["mcp-session-id"] for reply in replies}
    assert len(ids) == 2
    assert all(len(each) == 32 for each in ids)


@pytest.mark.parametrize("session", ["0" * 32, "of another server", ""])
def test_a_session_of_before_a_restart_goes_on(session: str) -> None:
    listed = result_of(send(LIST, headers={"mcp-session-id": session}))
    assert listed["id"] == "list"
    assert {"complete", "load_model"} <= {tool["name"] for tool in listed["result"]["tools"]}


@pytest.mark.parametrize(
    ("body", "code", "sentence"),
    [
        (b"", -32700, "The request body is empty"),
        (b"{", -32700, "not valid JSON"),
        (b'{"params": ' + b"[" * 100_000, -32700, "deep"),
        (b"[]", -32700, "expected `object`"),
        (b"{}", -32600, "`jsonrpc` is required."),
        (b'{"jsonrpc": "2.0", "id": 1}', -32600, "`method` is required."),
        (b'{"jsonrpc": "2.0", "id": 1.5, "method": "ping"}', -32600, "Invalid `id`"),
        (b'{"jsonrpc": "2.0", "id": [], "method": "ping"}', -32600, "Invalid `id`"),
        (b'{"jsonrpc": "2.0", "id": %s, "method": "ping"}' % (b"9" * 5000), -32700, "out of range"),
        (b'{"jsonrpc": "2.0", "id": 1, "method": 7}', -32600, "Invalid `method`"),
        (
            b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": %s}' % (b"[" * 200 + b"]" * 200),
            -32600,
            "deep",
        ),
    ],
)
def test_what_is_no_message_is_refused_as_json_rpc_has_it(body: bytes, code: int, sentence: str) -> None:
    reply = send(body)
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] == code
    assert sentence in reply.json()["error"]["message"]
    assert reply.json()["id"] is None


@pytest.mark.parametrize("version", [None, "2025-06-18", "2026-07-28", "1999-01-01", "x" * 500])
@pytest.mark.parametrize(
    "fields",
    [
        {"method": "nothing/such"},
        {"method": "tools/call"},
        {"method": "tools/call", "params": {"name": 7}},
        {"method": "tools/call", "params": {"name": "complete", "arguments": []}},
        {"method": "tools/call", "params": {"name": "complete", "arguments": {"prompt": {}}}},
        {"method": "tools/call", "params": {"name": "complete", "arguments": {"messages": 2**63}}},
        {"method": "initialize", "params": {"protocolVersion": []}},
        {"method": "tools/list", "params": {"cursor": 1}},
        {"method": "tools/list", "params": {"_meta": {"progressToken": {}}}},
        {"method": "notifications/cancelled", "params": {"requestId": {}}},
        {"result": {}},
    ],
    ids=str,
)
def test_no_message_makes_the_server_fail(fields: dict[str, Any], version: str | None) -> None:
    headers = {} if version is None else {"mcp-protocol-version": version}
    assert send({"jsonrpc": "2.0", "id": 1, **fields}, headers=headers).status_code < 500


def test_a_body_keeps_to_the_bounds_of_all_bodies() -> None:
    assert send(LIST | {"params": {"cursor": "x" * 3000}}, max_body_mb=0.002).status_code == 413
    assert send(LIST, headers={"content-type": "text/plain"}).status_code == 415


def test_blanks_around_a_header_are_no_part_of_it() -> None:
    """The parser of the real server leaves those behind a value."""
    scope_headers = {"mcp-protocol-version": "2025-06-18  "}
    assert result_of(send(LIST, headers=scope_headers))["result"]["tools"]


def test_it_can_be_switched_off() -> None:
    reply = send(HELLO, mcp_endpoint=False)
    assert reply.status_code == 404
    assert "mcp_endpoint" in reply.json()["error"]["message"]


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pippin.mcp.endpoint", None)
    reply = send(HELLO)
    assert reply.status_code == 404
    assert "pippin[mcp]" in reply.json()["error"]["message"]


def test_it_stands_behind_the_guards_of_all_addresses() -> None:
    assert send(HELLO, api_keys=("secret",)).status_code == 401
    assert send(HELLO, api_keys=("secret",), headers={"authorization": "Bearer secret"}).status_code == 200
    assert send(HELLO, headers={"host": "evil.example"}).status_code == 403
    assert send(HELLO, headers={"origin": "http://evil.example"}).status_code == 403
    assert send(HELLO, headers={"sec-fetch-site": "cross-site"}).status_code == 403


def test_strangers_at_a_public_address_find_no_management() -> None:
    listed = result_of(send(LIST, host="0.0.0.0"))["result"]["tools"]
    assert not {"load_model", "unload_model"} & {tool["name"] for tool in listed}
    call = {"name": "load_model", "arguments": {"model": "any"}}
    refused = result_of(send(LIST | {"method": "tools/call", "params": call}, host="0.0.0.0"))["result"]
    assert refused["isError"]
    assert "needs an API key" in refused["content"][0]["text"]


def test_only_whoever_began_a_call_can_cancel_it() -> None:
    async def forever() -> ToolAnswer:
        await asyncio.Event().wait()
        raise AssertionError

    def request(session: str, client: str) -> Request:
        headers = [(b"mcp-session-id", session.encode())]
        scope = {"type": "http", "path": "/mcp", "headers": headers}
        open_exchange(scope).caller = client
        return Request(scope)

    async def main() -> None:
        calls = RunningCalls()
        own, other = "a" * 32, "b" * 32
        running = asyncio.create_task(calls.run(key_of(request(own, "alice"), 1), forever()))
        await asyncio.sleep(0)
        for session, client, number in (
            (own, "bob", 1),
            (other, "alice", 1),
            (own, "alice", "1"),
            ("", "alice", 1),
        ):
            calls.cancel(key_of(request(session, client), number))
        await asyncio.sleep(0.01)
        assert not running.done()
        calls.cancel(key_of(request(own, "alice"), 1))
        assert await running == CANCELLED

    asyncio.run(main())
