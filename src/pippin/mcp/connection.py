"""One MCP server: connected in a task of its own, connected again when it was lost, called with a time limit."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec import Struct

from pippin import __version__
from pippin.config.mcp_file import McpServer
from pippin.mcp.browser import NotGranted

if TYPE_CHECKING:
    from pippin.mcp.authorization import Person

log = logging.getLogger(__name__)

RETRY: Final = (
    1.0,
    60.0,
)  # seconds before the first and before every later attempt to connect, doubled between
PATIENCE: Final = 5.0  # seconds a request waits for a server that is connecting
FAREWELL: Final = 2.0  # seconds for a server to hear that nobody calls it any more
MOST_TOOLS: Final = 256
LONGEST_NAME: Final = 128
"""Characters of a tool's name, as the protocol has it; tools with longer ones are left out."""
LOGIN: Final = (
    "it asks for a login (OAuth). Log in once with `pippin mcp login {name}`, or give it a token in `headers`, or a "
    "client's secret in `oauth`."
)
NOT_KNOWN: Final = (
    "its authorization server did not accept the client in `oauth`; check its id, secret and `issuer`."
)
NOT_VOUCHED_FOR: Final = (
    "it was given no assertion that it accepts; check the token in `id_token_file`, which may have expired, and the "
    "rest of `oauth`."
)
NO_WORKLOAD: Final = (
    "its authorization server did not accept the identity of this program; check the token in `assertion_file`, which "
    "may have expired or name another audience, and the rest of `oauth`."
)
MORE_RIGHTS: Final = "its server wants a login with more rights: `pippin mcp login {name}`"
LONGEST_DESCRIPTION: Final = 4096

State = Literal["connecting", "connected", "failed", "stopped"]


class RemoteTool(Struct, frozen=True, kw_only=True):
    """A tool as its server describes it."""

    name: str
    description: str
    parameters: dict[str, Any]
    read_only: bool | None = None  # what its server says of it (the annotation readOnlyHint)


class CallFailed(Exception):
    """A call brought no result. The message may be told to the model and to clients."""


class Connection:
    def __init__(self, server: McpServer, person: "Person | None" = None) -> None:
        """`person` grants access in a browser where the server asks for that; None: nobody is there."""
        self.server = server
        self._person = person
        self.state: State = "connecting"
        self.error: str | None = None
        self.tools: tuple[RemoteTool, ...] = ()
        self._client: Any = None  # mcp.Client; a library that is imported only when it is needed
        self._settled = asyncio.Event()  # connected, or failed at least once
        self._lost = asyncio.Event()  # found to answer no more
        self._ended = asyncio.Event()  # taken down, for whatever reason
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

    async def ready(self) -> bool:
        """Whether it can be called; waits a little for one that is only just connecting."""
        try:
            async with asyncio.timeout(PATIENCE):
                await self._settled.wait()
        except TimeoutError:
            return False
        return self.state == "connected"

    async def call(self, tool: str, arguments: dict[str, Any]) -> tuple[str, bool]:
        """The result as text, and whether the tool itself says that it failed. Raises `CallFailed`."""
        client = self._client
        if self.state != "connected" or client is None:
            raise CallFailed(f"The MCP server {self.server.name!r} is not connected.")
        try:
            async with asyncio.timeout(self.server.timeout):
                result = await self._result(client, tool, arguments)
        except TimeoutError:
            message = f"The tool {tool!r} gave no result within {self.server.timeout:g} seconds."
            raise CallFailed(message) from None
        except Exception as error:
            # The library names no closed set: errors of the protocol, of HTTP, of its streams, of pydantic for what
            # the server sent, of OAuth, and a RuntimeError for a result unlike its schema. Whichever it is, the call
            # brought no result, which the model must hear, and nothing else may end by it.
            if self._login_wanted:
                needed = MORE_RIGHTS.format(name=self.server.name)
                raise CallFailed(f"The tool {tool!r} can't be called: {needed}.") from error
            log.warning(
                "MCP server %s: calling %s failed (%s).", self.server.name, tool, type(error).__name__
            )
            if not await self._answers(client):
                self._lost.set()
            raise CallFailed(f"Calling the tool {tool!r} failed.") from error
        return text_of(result.content, result.structured_content), bool(result.is_error)

    async def _result(self, client: Any, tool: str, arguments: dict[str, Any]) -> Any:
        """The library's result of a call. It gives none where the connection ends meanwhile, which is noticed here."""
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

    async def _answers(self, client: Any) -> bool:
        """A server that refused one call is well; one that can't list its tools is gone."""
        try:
            async with asyncio.timeout(PATIENCE):
                await client.session.list_tools()
        except Exception:  # of as many kinds as in `call`; each means that it does not answer
            return False
        return True

    async def _keep(self) -> None:
        pause, longest = RETRY
        while True:
            try:
                async with self.connected():
                    pause = RETRY[0]
                    await self._lost.wait()
                log.warning("The MCP server %s was lost; connecting again.", self.server.name)
            except Exception as error:  # of as many kinds; none may end the task that connects again
                self._fail(error)
            self.state = "failed"
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Connected once, for as long as this is open. Raises whatever the library does; `reason` puts it in words."""
        import mcp_types

        import mcp
        from pippin.mcp.elicitation import Answers

        self._lost.clear()
        self._ended.clear()
        info = mcp_types.Implementation(name="pippin", version=__version__)
        self._login_wanted = False
        async with self._transport() as transport:
            answers = Answers(self.server)
            client = mcp.Client(transport, client_info=info, cache=None, elicitation_callback=answers)
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
        """End a connection. Nothing that its server does then matters any more, nor may it hide why it is ended: a
        server that leaves the farewell unanswered would keep this one from stopping for minutes."""
        # The library itself bounds how long it waits for a program, and must come to the end of it, which is SIGKILL.
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
        """The library's transport to the server. What a program prints to stderr goes nowhere: it may be anything."""
        server = self.server
        if server.transport == "stdio":
            from mcp.client.stdio import StdioServerParameters, stdio_client

            parameters = StdioServerParameters(
                command=server.command, args=list(server.args), env=server.env, cwd=server.cwd
            )
            with open(os.devnull, "w") as nowhere:  # noqa: ASYNC230 - the null device doesn't block
                yield stdio_client(parameters, errlog=nowhere)
            return
        from pippin.mcp.authorization import provider_of
        from pippin.mcp.bounds import bounded_client

        auth = await asyncio.to_thread(provider_of, server, self._person, self._needs_login)
        if server.transport == "sse":
            from mcp.client.sse import sse_client

            yield sse_client(
                server.url,
                headers=dict(server.headers),
                timeout=server.timeout,
                auth=auth,
                httpx_client_factory=bounded_client,
            )
        else:
            from mcp.client.streamable_http import streamable_http_client

            async with bounded_client(headers=dict(server.headers), auth=auth) as http:
                if auth is None:
                    hooks = (*http.event_hooks.get("response", ()), self._see_status)
                    http.event_hooks = {**http.event_hooks, "response": list(hooks)}
                yield streamable_http_client(server.url, http_client=http)

    async def _see_status(self, answer: Any) -> None:
        """Of each answer over HTTP: the library makes one error of all bad ones, without their status."""
        if answer.status_code == 401:
            self._needs_login()

    def _needs_login(self) -> None:
        self._login_wanted = True

    def reason(self, error: Exception) -> str:
        """Why a connection failed, with the way out where the operator knows one."""
        if not (self._login_wanted or asks_for_login(error)):
            return reason_of(error)
        oauth = self.server.oauth
        if oauth is not None and oauth.grant == "client_credentials":
            return NOT_KNOWN
        if oauth is not None and oauth.grant == "identity_assertion":
            return NOT_VOUCHED_FOR
        if oauth is not None and oauth.grant == "workload_identity":
            return NO_WORKLOAD
        return LOGIN.format(name=self.server.name)

    def _fail(self, error: Exception) -> None:
        reason = self.reason(error)
        if reason != self.error:  # once, not at every attempt
            log.warning("The MCP server %s can't be used: %s", self.server.name, reason)
        self.state, self.error = "failed", reason
        self._settled.set()


async def list_tools(client: Any) -> tuple[RemoteTool, ...]:
    """All pages, up to `MOST_TOOLS`."""
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
    """What a model can read of a result."""
    import json

    pieces = [block.text if block.type == "text" else f"[{block.type} left out]" for block in content]
    if not pieces and structured is not None:
        return json.dumps(structured, ensure_ascii=False)
    return "\n".join(pieces)


def reason_of(error: BaseException) -> str:
    """The innermost reason of a failed connection, in a few words that hold no addresses or arguments."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    for each in _behind(error):
        if isinstance(each, NotGranted):
            return str(each)
    match error:
        case ModuleNotFoundError(name="mcp" | "mcp_types"):
            return "the library is missing; install pippin[mcp]."
        case FileNotFoundError():
            return "its program, or the file of its key, was not found."
        case PermissionError():
            return "its program may not be started."
        case TimeoutError():
            return "it did not answer in time."
        case _:
            return f"it ended or answered wrongly ({type(error).__name__})."


def asks_for_login(error: BaseException) -> bool:
    """Whether a failed connection wants a person to log in: an HTTP answer of 401 is behind its error, which the
    libraries of the transports wrap in classes of their own, or the authorization came to its end."""
    if _has(error, "OAuthFlowError", "LoginNeeded"):
        return True
    return any(
        getattr(getattr(each, "response", None), "status_code", None) == 401 for each in _behind(error)
    )


def _has(error: BaseException, *names: str) -> bool:
    """Whether an error of one of these classes is behind it. They are known by name, not to import the library."""
    return any(base.__name__ in names for each in _behind(error) for base in type(each).__mro__)


def _behind(error: BaseException | None) -> Iterator[BaseException]:
    """The error and its causes, each group by its first."""
    for _ in range(16):
        if error is None:
            return
        yield error
        error = (
            error.exceptions[0]
            if isinstance(error, BaseExceptionGroup)
            else error.__cause__ or error.__context__
        )
