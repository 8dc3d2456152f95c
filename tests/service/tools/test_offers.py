"""Which requests get the tools of MCP servers: plain values in, a request with tools out."""

import asyncio
from collections.abc import Sequence
from typing import get_args

import msgspec
import pytest

from pippin.config.mcp_file import McpServer, McpSettings
from pippin.config.options.server import McpOffer, ServerOptions
from pippin.core.conversation import Inline, Message, Text, Tool, ToolChoice, Toolset
from pippin.core.errors import ServerError
from pippin.core.requests import GenerationRequest
from pippin.mcp.connection import RemoteTool
from pippin.mcp.tools import OfferedTool, ToolServers
from pippin.service.tools.loop import Equipped, ToolOffers
from pippin.service.tools.web_search import WebSearcher

ASKED = GenerationRequest(model="m", messages=(Message("user", (Text("What time is it?"),)),))
NOW = RemoteTool(name="now", description="The time.", parameters={})


class OneServer(ToolServers):
    """A server `clock` with one tool, and what was asked for."""

    def __init__(self) -> None:
        super().__init__(McpSettings(servers=(McpServer(name="clock", transport="stdio"),)))
        self.wanted: list[str] = []

    async def offered(self, wanted: Sequence[Toolset]) -> dict[str, OfferedTool]:
        self.wanted = [each.server for each in wanted]
        tools = [OfferedTool("clock__now", "clock", self.connections[0].call, NOW)] if wanted else []
        return {tool.name: tool for tool in tools}


async def fetches_nothing(address: str, param: str) -> Inline:
    raise AssertionError(f"{param}: {address}")


def equip(
    request: GenerationRequest,
    named: tuple[str, ...] = (),
    offer: McpOffer = "asked",
    *,
    allowed: bool = True,
) -> tuple[Equipped, list[str]]:
    """The equipped request, and the servers whose tools were asked for."""
    servers = OneServer()
    offers = ToolOffers(servers, ServerOptions(mcp_offer=offer), WebSearcher(None, servers, fetches_nothing))
    return asyncio.run(offers.equip(request, named, allowed=allowed)), servers.wanted


def names(equipped: Equipped) -> list[str]:
    return [tool.name for tool in equipped.request.tools]


def test_a_request_gets_tools_only_if_someone_asks_for_them() -> None:
    equipped, wanted = equip(ASKED)
    assert (names(equipped), wanted) == ([], [])
    equipped, wanted = equip(ASKED, named=("clock", "calendar"))
    assert (names(equipped), wanted) == (["clock__now"], ["clock", "calendar"])
    equipped, wanted = equip(
        msgspec.structs.replace(ASKED, toolsets=(Toolset("clock"),)), named=("calendar",)
    )
    assert (names(equipped), wanted) == (["clock__now"], ["clock", "calendar"])
    assert equipped.request.toolsets == ()


def test_the_operator_can_offer_all_tools_to_all_plain_chats() -> None:
    equipped, wanted = equip(ASKED, offer="always")
    assert (names(equipped), wanted) == (["clock__now"], ["*"])
    for request in (
        msgspec.structs.replace(ASKED, n=2),
        msgspec.structs.replace(ASKED, tool_choice=ToolChoice("none")),
        GenerationRequest(model="m", prompt="Hi"),
    ):
        assert equip(request, offer="always")[1] == []


def test_a_tool_of_the_client_keeps_its_name() -> None:
    own = Tool("clock__now", "The client's.", {})
    equipped, _ = equip(msgspec.structs.replace(ASKED, tools=(own,)), named=("clock",))
    assert equipped.request.tools == (own,)
    assert not equipped.offered


def test_tools_that_are_asked_for_need_one_choice() -> None:
    with pytest.raises(ServerError, match="with one choice only"):
        equip(msgspec.structs.replace(ASKED, n=2), named=("clock",))


def test_a_caller_without_the_right_to_tools_is_refused_them_and_offered_none() -> None:
    for request, named in (
        (ASKED, ("clock",)),
        (ASKED, ("*",)),
        (msgspec.structs.replace(ASKED, toolsets=(Toolset("clock"),)), ()),
    ):
        for offer in get_args(McpOffer):
            with pytest.raises(ServerError, match="MCP tools are for those who may manage"):
                equip(request, named, offer, allowed=False)
    equipped, wanted = equip(ASKED, offer="always", allowed=False)
    assert (names(equipped), wanted) == ([], [])
    assert equipped.request == ASKED
