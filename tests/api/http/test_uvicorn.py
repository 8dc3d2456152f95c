"""What `api/http/protocol.py` relies on in uvicorn. Where this fails, a new uvicorn came in that lacks it."""

import asyncio
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from packaging.requirements import Requirement
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

ROOT = Path(__file__).resolve().parents[3]
REQUEST = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"
WAY_OUT = (
    f"uvicorn {version('uvicorn')} {{}}, which src/pippin/api/http/protocol.py relies on: "
    "adapt that file, or lower the bound of uvicorn in pyproject.toml."
)


class Transport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 5), "sockname": ("127.0.0.1", 6)})
        self.writes: list[bytes] = []

    def write(self, data: Any) -> None:
        self.writes.append(data)

    def close(self) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def is_closing(self) -> bool:
        return False


def test_the_installed_uvicorn_is_within_the_range_that_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (declared,) = (
        requirement
        for requirement in map(Requirement, project["dependencies"])
        if requirement.name == "uvicorn"
    )
    assert any(specifier.operator == "<" for specifier in declared.specifier), "uvicorn has no upper bound"
    assert version("uvicorn") in declared.specifier, (
        f"uvicorn {version('uvicorn')} is installed and pyproject.toml wants {declared.specifier}: "
        "raise that bound when all tests in tests/api pass."
    )


def test_uvicorn_makes_one_of_the_class_that_it_is_given_for_each_connection() -> None:
    made: list[dict[str, Any]] = []

    class Ours(asyncio.Protocol):
        def __init__(self, **arguments: Any) -> None:
            made.append(arguments)

    async def app(scope: Any, receive: Any, send: Any) -> None: ...

    async def main() -> None:
        config = uvicorn.Config(app, http=Ours, port=0, ws="none", lifespan="off", log_config=None)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.01)
        address = server.servers[0].sockets[0].getsockname()
        _, writer = await asyncio.open_connection(*address)
        await asyncio.sleep(0.05)
        writer.close()
        server.should_exit = True
        await serving

    asyncio.run(main())
    assert len(made) == 1, WAY_OUT.format("does not make one of Config(http=...) for each connection")
    assert {"config", "server_state", "app_state"} <= set(made[0]), WAY_OUT.format(
        "does not name config, server_state and app_state to the class that is given as Config(http=...)"
    )


def test_uvicorns_protocol_is_driven_by_asyncios_methods_and_hands_its_state_to_each_request() -> None:
    states: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        states.append(scope.get("state"))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def main() -> bytes:
        config = uvicorn.Config(app, interface="asgi3", ws="none", lifespan="off", log_config=None)
        config.load()
        state, transport = ServerState(), Transport()
        protocol = HttpToolsProtocol(config=config, server_state=state, app_state={"theirs": 1})
        protocol.connection_made(transport)
        protocol.data_received(REQUEST + REQUEST)
        while state.tasks:  # noqa: ASYNC110 - the second task is made by the end of the first
            await asyncio.sleep(0)
        protocol.pause_writing()
        protocol.resume_writing()
        protocol.eof_received()
        protocol.connection_lost(None)
        return b"".join(transport.writes)

    try:
        written = asyncio.run(main())
    except (AttributeError, TypeError) as error:
        pytest.fail(WAY_OUT.format(f"has another HttpToolsProtocol ({error})"))
    assert written.count(b"HTTP/1.1 204") == 2, WAY_OUT.format("does not answer pipelined requests")
    assert states == [{"theirs": 1}] * 2, WAY_OUT.format("does not hand app_state to each request")
    assert states[0] is not states[1], WAY_OUT.format("does not copy app_state for each request")


def test_uvicorn_writes_the_headers_of_an_answer_at_once_and_each_chunk_at_once() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]})
        for body, more in ((b"one", True), (b"", True), (b"two", False)):
            await send({"type": "http.response.body", "body": body, "more_body": more})

    async def main() -> list[bytes]:
        config = uvicorn.Config(app, interface="asgi3", ws="none", lifespan="off", log_config=None)
        config.load()
        state, transport = ServerState(), Transport()
        protocol = HttpToolsProtocol(config=config, server_state=state, app_state={})
        protocol.connection_made(transport)
        protocol.data_received(REQUEST)
        while state.tasks:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0)
        protocol.connection_lost(None)
        return transport.writes

    head, *chunks = asyncio.run(main())
    assert head.endswith(b"transfer-encoding: chunked\r\n\r\n"), WAY_OUT.format(
        "cuts the headers of an answer"
    )
    wanted = [b"3\r\none\r\n", b"", b"3\r\ntwo\r\n0\r\n\r\n"]
    assert chunks == wanted, WAY_OUT.format("writes the chunks of an answer otherwise")
