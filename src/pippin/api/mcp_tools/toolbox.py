"""The tools that Pippin offers as an MCP server, which are called with the rights of the caller."""

import asyncio
import logging
import re
from collections.abc import Coroutine, Sequence
from typing import Any, Final, NoReturn

import msgspec
from starlette.requests import Request

from pippin.api.access.errors import INTERNAL
from pippin.api.access.exchange import exchange_of
from pippin.api.access.guards import NO_ADMIN, NO_KEY
from pippin.api.mcp_tools.complete import COMPLETE
from pippin.api.mcp_tools.models import LIST_MODELS, LOAD_MODEL, UNLOAD_MODEL
from pippin.api.mcp_tools.sounds import SPEAK, TRANSCRIBE
from pippin.api.mcp_tools.texts import EMBED, RERANK
from pippin.api.mcp_tools.tool import Call, Tool
from pippin.api.routing import Api
from pippin.core.errors import ServerError
from pippin.core.traces import trace_of
from pippin.mcp.toolbox import Scope, ServedCall, ServedTool, ToolAnswer

log = logging.getLogger(__name__)

TOOLS: Final[tuple[Tool[Any], ...]] = (
    LIST_MODELS,
    COMPLETE,
    EMBED,
    RERANK,
    TRANSCRIBE,
    SPEAK,
    LOAD_MODEL,
    UNLOAD_MODEL,
)
INSTRUCTIONS: Final = (
    "Pippin runs models on the machine of its operator. `list_models` tells which there are and what each can do; "
    "the other tools ask one of them. A model that is not in memory is loaded first, which may take minutes."
)
SESSION: Final = "mcp-session-id"
SESSION_ID: Final = re.compile(r"[0-9a-f]{32}")
CANCELLED: Final = ToolAnswer(text="The call was cancelled.", is_error=True)

CallKey = tuple[str, str, int | str]
"""The key of a running call: the caller's account, the session, and the client's own id of the call."""


class RunningCalls:
    """The calls that run now, so that their clients can cancel them."""

    def __init__(self) -> None:
        self._tasks: dict[CallKey, asyncio.Task[ToolAnswer]] = {}

    async def run(self, key: CallKey | None, work: Coroutine[Any, Any, ToolAnswer]) -> ToolAnswer:
        """The result of `work`, or `CANCELLED`. Without a `key` the client can't cancel the call."""
        task = asyncio.create_task(work, name="call of a tool")
        if key is not None:
            self._tasks[key] = task
        try:
            await asyncio.wait({task})
        finally:
            if key is not None and self._tasks.get(key) is task:
                del self._tasks[key]
            if not task.done():  # the client left
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        return CANCELLED if task.cancelled() else task.result()

    def cancel(self, key: CallKey | None) -> None:
        if key is not None and (task := self._tasks.get(key)) is not None:
            task.cancel()


def key_of(request: Request, id: int | str) -> CallKey | None:
    """The key of a call; None if the client shows no session, since its ids may be another client's too."""
    session = request.headers.get(SESSION, "")
    if not SESSION_ID.fullmatch(session):
        return None
    return exchange_of(request.scope).account, session, id


class PippinToolbox:
    """See `Toolbox`."""

    def __init__(self, api: Api) -> None:
        self.running = RunningCalls()
        self._api = api
        self._tools = {tool.name: tool for tool in TOOLS}

    def schema_of(self, name: str) -> dict[str, Any] | None:
        tool = self._tools.get(name)
        return None if tool is None else tool.served.arguments

    async def tools(self, scope: Scope) -> Sequence[ServedTool]:
        """The tools for which there is a model; those that manage only for callers who may."""
        service = self._api.service
        kinds = {info.kind for info in await asyncio.to_thread(service.models)}
        kinds |= {info.kind for info in await asyncio.to_thread(service.missing)}
        manages = exchange_of(scope).manages
        return [
            tool.served
            for tool in TOOLS
            if (manages or not tool.manages)
            and (tool.kind in (None, "language") or kinds & {tool.kind, "scripted"})
        ]

    async def call(self, call: ServedCall) -> ToolAnswer:
        return await self.running.run(key_of(Request(call.scope), call.id), self._answer(call))

    async def _answer(self, call: ServedCall) -> ToolAnswer:
        exchange = exchange_of(call.scope)
        try:
            return await self._run(self._tools[call.tool], call)
        except ServerError as error:
            exchange.refusal = error.report.message
            return ToolAnswer(text=error.report.message, is_error=True)
        except Exception as error:  # of any kind; the client is told nothing about it
            log.error("The tool %s of request %s failed.\n%s", call.tool, exchange.id, trace_of(error))
            return ToolAnswer(text=INTERNAL.message, is_error=True)
        finally:
            exchange.facts = {"tool": call.tool, **exchange.facts}

    async def _run(self, tool: Tool[Any], call: ServedCall) -> ToolAnswer:
        exchange = exchange_of(call.scope)
        if tool.manages and not exchange.manages:
            raise ServerError("permission", NO_ADMIN if exchange.key else NO_KEY)
        arguments = tool.arguments_of(call.arguments)
        request = Request(call.scope, _nothing_more)
        done = await tool.run(Call(self._api, request, call.tell), arguments)
        structured = msgspec.to_builtins(done.result)
        text = msgspec.json.encode(structured).decode() if done.text is None else done.text
        return ToolAnswer(text=text, structured=structured, sound=done.sound)


async def _nothing_more() -> NoReturn:
    """The `receive` of a tool's request: nothing comes. The protocol notices when the client leaves."""
    await asyncio.Event().wait()
    raise AssertionError("nobody sets the event")
