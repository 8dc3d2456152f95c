"""The connection to one MCP server: kept in a task of its own, reopened when lost, with a time limit on calls."""

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final, Literal

from msgspec import Struct

from pippin import __version__
from pippin.config.errors import install_command
from pippin.config.mcp_file import McpServer

log = logging.getLogger(__name__)

RETRY: Final = (1.0, 60.0)
"""Seconds between attempts to connect: the first pause, which is doubled each time, and the longest."""
PATIENCE: Final = 5.0  # seconds that a request waits for a connecting server
FAREWELL: Final = 2.0  # seconds for a server to acknowledge the end of the session
MOST_TOOLS: Final = 256
LONGEST_NAME: Final = 128
"""Most characters in a tool's name, as the protocol specifies; tools with longer names are left out."""
LOGIN: Final = (
    "it asks for a login (OAuth). Give it a token in `headers`, or start it by a program that logs in: command `npx`, "
    "args `mcp-remote` and its address."
)
LONGEST_DESCRIPTION: Final = 4096
LONGEST_ERROR: Final = 500  # characters

State = Literal["connecting", "connected", "failed", "stopped"]


class RemoteTool(Struct, frozen=True, kw_only=True):
    """A tool as described by its server."""

    name: str
    description: str
    parameters: dict[str, Any]
    read_only: bool | None = None  # the server's claim (annotation readOnlyHint)


class CallResult(Struct, frozen=True):
    """What a tool has said, or why it has said nothing; the model and clients may read either."""

    text: str
    is_error: bool


class Connection:
    def __init__(self, server: McpServer) -> None:
        self.server = server
        self.state: State = "connecting"
        self.error: str | None = None
        self.tools: tuple[RemoteTool, ...] = ()
        self._client: Any = None  # an mcp.Client; the library is imported only when needed
        self._settled = asyncio.Event()  # connected, or failed at least once
        self._lost = asyncio.Event()  # the server no longer answers
        self._ended = asyncio.Event()  # the connection was closed, for whatever reason
        self._login_wanted = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._keep(), name=f"mcp {self.server.name}")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        self.state = "stopped"

    async def settled(self) -> None:
        """Wait briefly for a server that is still connecting."""
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await self._settled.wait()

    async def call(self, tool: str, arguments: dict[str, Any]) -> CallResult:
        """Call a tool."""
        import mcp

        client = self._client
        if self.state != "connected" or client is None:
            return CallResult(f"The MCP server {self.server.name!r} is not connected.", True)
        try:
            async with asyncio.timeout(self.server.timeout):
                result = await self._result(client, tool, arguments)
        except TimeoutError:
            message = f"The tool {tool!r} gave no result within {self.server.timeout:g} seconds."
            return CallResult(message, True)
        except Exception as error:
            # The library raises no closed set of errors: from the protocol, HTTP, its streams and pydantic, and a
            # RuntimeError for a result that does not match its schema. In each case the call produced no result. The
            # model must learn that, and nothing else may fail because of it.
            log.warning(
                "MCP server %s: calling %s failed (%s).", self.server.name, tool, type(error).__name__
            )
            # A server that refused a call is alive; one that can't list its tools either is gone.
            try:
                async with asyncio.timeout(PATIENCE):
                    await client.session.list_tools()
            except Exception:  # of as many kinds
                self._lost.set()
            # A protocol error has a sentence, such as for a tool that asks a person for input.
            said = f": {error.message[:LONGEST_ERROR]}" if isinstance(error, mcp.MCPError) else ""
            return CallResult(f"Calling the tool {tool!r} failed{said}.", True)
        return CallResult(text_of(result.content, result.structured_content), bool(result.is_error))

    async def _result(self, client: Any, tool: str, arguments: dict[str, Any]) -> Any:
        """The library's result of a call. Raises `ConnectionError` if the connection ends first, which the library
        misses."""
        calling = asyncio.create_task(client.call_tool(tool, arguments))
        ended = asyncio.create_task(self._ended.wait())
        try:
            await asyncio.wait({calling, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not calling.done():
                raise ConnectionError
            return calling.result()
        finally:
            calling.cancel()
            ended.cancel()
            await asyncio.gather(calling, ended, return_exceptions=True)

    async def _keep(self) -> None:
        pause, longest = RETRY
        own = asyncio.current_task()
        assert own is not None
        while True:
            try:
                async with self.connected():
                    pause = RETRY[0]
                    await self._lost.wait()
                log.warning("The MCP server %s was lost; connecting again.", self.server.name)
            except Exception as error:  # of as many kinds; none may end the reconnecting task
                reason = LOGIN if self._login_wanted else reason_of(error)
                if reason != self.error:  # log it once, not at every attempt
                    log.warning("The MCP server %s can't be used: %s", self.server.name, reason)
                self.error = reason
                self._settled.set()
            self.state = "failed"
            # The library raises its own error where a connection that ends badly is cancelled meanwhile.
            if own.cancelling():
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Connect once, for the duration of this context. Raises whatever the library does."""
        import mcp_types

        import mcp

        self._lost.clear()
        self._ended.clear()
        info = mcp_types.Implementation(name="pippin", version=__version__)
        self._login_wanted = False
        async with self._transport() as transport:
            client = mcp.Client(transport, client_info=info, cache=None)
            try:
                async with asyncio.timeout(self.server.greeting_timeout):
                    await client.__aenter__()
                    self.tools = await list_tools(client)
                self._client, self.state, self.error = client, "connected", None
                self._settled.set()
                log.info("The MCP server %s is connected: %d tools.", self.server.name, len(self.tools))
                yield
            finally:
                self._ended.set()
                self._client, self.tools = None, ()
                await self._part_from(client)

    async def _part_from(self, client: Any) -> None:
        """Close a connection. Errors of the server no longer matter and must not hide why it is closed. A server that
        does not answer the end of the session would otherwise delay this server's stop by minutes."""
        # The library bounds its own wait for a program, and must reach the end of it, which is SIGKILL.
        patience = None if self.server.transport == "stdio" else FAREWELL
        try:
            async with asyncio.timeout(patience):
                await client.__aexit__(None, None, None)
        except Exception as error:
            log.debug(
                "MCP server %s: its connection ended badly (%s).", self.server.name, type(error).__name__
            )

    @asynccontextmanager
    async def _transport(self) -> AsyncIterator[Any]:
        """The library's transport to the server. A program's stderr is discarded, because it may contain anything."""
        server = self.server
        if server.transport == "stdio":
            from mcp.client.stdio import StdioServerParameters, stdio_client

            parameters = StdioServerParameters(
                command=server.command, args=list(server.args), env=server.env, cwd=server.cwd
            )
            with open(os.devnull, "w") as nowhere:  # noqa: ASYNC230 - the null device doesn't block
                yield stdio_client(parameters, errlog=nowhere)
            return
        from pippin.mcp.bounds import bounded_client

        client = partial(bounded_client, self._see_status)
        if server.transport == "sse":
            from mcp.client.sse import sse_client

            yield sse_client(
                server.url, headers=dict(server.headers), timeout=server.timeout, httpx_client_factory=client
            )
        else:
            from mcp.client.streamable_http import streamable_http_client

            async with client(headers=dict(server.headers)) as http:
                yield streamable_http_client(server.url, http_client=http)

    async def _see_status(self, answer: Any) -> None:
        """Check each HTTP answer, because the library turns all failures into one error without the status."""
        if answer.status_code == 401:
            self._login_wanted = True


async def list_tools(client: Any) -> tuple[RemoteTool, ...]:
    """The tools of all pages, up to `MOST_TOOLS`."""
    import mcp_types

    found: list[RemoteTool] = []
    cursor = None
    while len(found) < MOST_TOOLS:
        page = await client.session.list_tools(params=mcp_types.PaginatedRequestParams(cursor=cursor))
        found += [
            RemoteTool(
                name=tool.name,
                description=(tool.description or "")[:LONGEST_DESCRIPTION],
                parameters=tool.input_schema,
                read_only=None if tool.annotations is None else tool.annotations.read_only_hint,
            )
            for tool in page.tools
            if len(tool.name) <= LONGEST_NAME and tool.name.isprintable()
        ]
        cursor = page.next_cursor
        if cursor is None or not page.tools:
            break
    return tuple(found[:MOST_TOOLS])


def text_of(content: list[Any], structured: Any) -> str:
    """The part of a result that a model can read."""
    pieces = [block.text if block.type == "text" else f"[{block.type} left out]" for block in content]
    if not pieces and structured is not None:
        return json.dumps(structured, ensure_ascii=False)
    return "\n".join(pieces)


def reason_of(error: BaseException) -> str:
    """The innermost reason of a failed connection, in a few words without addresses or arguments."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    match error:
        case ModuleNotFoundError(name="mcp" | "mcp_types"):
            return f"the library is missing: {install_command('mcp')}."
        case FileNotFoundError():
            return "its program was not found."
        case PermissionError():
            return "its program may not be started."
        case TimeoutError():
            return "it did not answer in time."
        case _:
            return f"it ended or answered wrongly ({type(error).__name__})."
