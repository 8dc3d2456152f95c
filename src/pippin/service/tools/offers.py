"""Which MCP tools a request gets, and what then runs it: the service itself, or a loop of runs and tool calls."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from pippin.config.options.server import McpOffer, ServerOptions
from pippin.core.conversation import WEB_SEARCH, Tool, Toolset
from pippin.core.errors import ServerError
from pippin.core.requests import GenerationRequest
from pippin.core.tasks import Generate, Task
from pippin.mcp.tools import EVERY, OfferedTool, ToolServers
from pippin.service import Service
from pippin.service.service import AnyRun, Starter
from pippin.service.tools.loop import ToolLoop
from pippin.service.tools.web_search import WebSearcher

NOT_ALLOWED: Final = (
    "MCP tools are for those who may manage this server; the operator gives a key `role: admin` or "
    "`mcp_tools: true` in the file of --api-key-file, or sets keys where there are none."
)


@dataclass(frozen=True, slots=True)
class Equipped:
    request: GenerationRequest
    offered: Mapping[str, OfferedTool] = field(default_factory=dict)


class ToolCallingService:
    """Starts generations as the service does, but each as a `ToolLoop` with MCP tools."""

    def __init__(self, service: Service, servers: ToolServers, offered: Mapping[str, OfferedTool]) -> None:
        self._service = service
        self._servers = servers
        self._offered = offered

    async def start(self, task: Task, *, model: str, id: str, account: str = "") -> AnyRun:
        assert isinstance(task, Generate)  # nothing else is equipped
        loop = ToolLoop(self._service, self._servers, self._offered, task.request, model, id, account)
        await loop.begin()
        return loop


def with_tools(request: GenerationRequest, offered: Mapping[str, OfferedTool]) -> GenerationRequest:
    """The request with these tools in place of its toolsets. A client's tool wins over an MCP tool of the same name."""
    own = {tool.name for tool in request.tools}
    more: tuple[Tool, ...] = tuple(tool.tool for name, tool in offered.items() if name not in own)
    if more and request.n > 1:
        raise ServerError("unsupported", "MCP tools can be used with one choice only; leave out `n`.", "n")
    return msgspec.structs.replace(request, tools=request.tools + more, toolsets=())


class ToolOffers:
    """Offers the operator's tool servers to the requests that ask for them, or to all, as configured."""

    def __init__(self, servers: ToolServers, offer: McpOffer, searcher: WebSearcher) -> None:
        self.servers = servers
        self._searcher = searcher
        self._offered(offer)

    def adopt(self, options: ServerOptions) -> None:
        """Apply changed options to new requests."""
        self._offered(options.mcp_offer)

    def _offered(self, offer: McpOffer) -> None:
        self._offer = offer
        self.unasked = offer != "asked" and bool(self.servers)
        """Whether requests that ask for no tools get some."""

    async def equip(
        self, request: GenerationRequest, named: Sequence[str] = (), *, allowed: bool
    ) -> Equipped:
        """The request with the tools that it or the operator asks for.

        `named`: servers that the client names outside the request, or `*` for all. `allowed`: whether this client may
        use MCP tools. A client that may not is refused if it asks for them, and is not given those that the operator
        offers to everybody. Whoever may ask the model may have it search the web. Raises `ServerError` for that refusal
        and for an unknown server.
        """
        search, request = request.web_search, msgspec.structs.replace(request, web_search=None)
        equipped = await self._equipped(request, named, allowed=allowed)
        if search is None or any(tool.name == WEB_SEARCH for tool in request.tools):
            return equipped
        searching = {WEB_SEARCH: self._searcher.tool(search)}
        return Equipped(with_tools(equipped.request, searching), {**equipped.offered, **searching})

    async def _equipped(self, request: GenerationRequest, named: Sequence[str], *, allowed: bool) -> Equipped:
        """The request with the tools of MCP servers."""
        wanted = self._wanted(request, named)
        if not wanted:
            return Equipped(request)
        if not allowed:
            if request.toolsets or named:
                raise ServerError("permission", NOT_ALLOWED, "tools")
            return Equipped(request)
        offered = await self.servers.offered(wanted)
        own = {tool.name for tool in request.tools}
        offered = {name: tool for name, tool in offered.items() if name not in own}
        return Equipped(with_tools(request, offered), offered)

    def starter(self, service: Service, equipped: Sequence[Equipped]) -> Starter:
        [first, *others] = equipped
        if first.offered and not others:
            return ToolCallingService(service, self.servers, first.offered)
        return service

    def _wanted(self, request: GenerationRequest, named: Sequence[str]) -> tuple[Toolset, ...]:
        if request.messages is None:
            return ()
        wanted = request.toolsets + tuple(map(Toolset, named))
        if wanted or not self.unasked:
            return wanted
        plain = request.n == 1 and request.tool_choice.mode != "none"
        return (Toolset(EVERY),) if plain else ()
