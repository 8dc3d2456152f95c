"""Decides which MCP tools a request is given, and by whom it is then run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pippin.config.options.server import McpOffer, ServerOptions
from pippin.core.conversation import Toolset
from pippin.core.requests import GenerationRequest
from pippin.mcp.tools import EVERY, OfferedTool, ToolServers
from pippin.service import Service
from pippin.service.run import Starter
from pippin.service.tools.loop import ToolCallingService, with_tools

HEADER: Final = "x-mcp-servers"
"""Names of servers, separated by commas, or `*`: for dialects and clients that have no field for it."""


@dataclass(frozen=True, slots=True)
class Equipped:
    request: GenerationRequest
    offered: Mapping[str, OfferedTool] = field(default_factory=dict)


class ToolOffers:
    def __init__(self, servers: ToolServers, offer: McpOffer) -> None:
        self.servers = servers
        self._offer = offer

    def adopt(self, options: ServerOptions) -> None:
        """Hold new requests to changed options."""
        self._offer = options.mcp_offer

    async def equip(self, request: GenerationRequest, headers: Mapping[str, str]) -> Equipped:
        """The request with the tools that it or the operator asks for. Raises `ServerError` for an unknown server."""
        wanted = self._wanted(request, headers.get(HEADER, ""))
        if not wanted:
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

    def _wanted(self, request: GenerationRequest, header: str) -> tuple[Toolset, ...]:
        if request.messages is None:
            return ()
        wanted = request.toolsets + tuple(Toolset(name.strip()) for name in header.split(",") if name.strip())
        if wanted or self._offer == "asked" or not self.servers:
            return wanted
        plain = request.n == 1 and (request.best_of or 1) == 1 and request.tool_choice.mode != "none"
        return (Toolset(EVERY),) if plain else ()
