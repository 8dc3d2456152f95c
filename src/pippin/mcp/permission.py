"""Decides which tools of a server may be used: those that the operator named, and those that only look something up.

A prompt can talk a model into any call, so a tool that is not known to be harmless needs the operator's permission.
"""

import re
from collections.abc import Set
from typing import Final

from pippin.config.mcp_file import McpServer
from pippin.mcp.connection import RemoteTool

ALL: Final = "*"
"""In `allowed_tools`: every tool that the server has or will have."""
LOOKS_UP: Final = frozenset(
    "browse calculate count current date describe fetch find get list lookup now query read search show stat time "
    "tree view weather".split()
)
"""First words of tool names that read something and change nothing."""
JOINS: Final = frozenset({"and", "then", "or"})
_WORDS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")


def may_use(server: McpServer, tool: RemoteTool, high_risk: Set[str], offered: str) -> bool:
    """Whether a tool may be used.

    `high_risk` is the file's `allowed_high_risk_tools`, `offered` the tool's name with its server's in front.
    """
    if tool.name in server.denied_tools:
        return False
    if {tool.name, offered} & high_risk:
        return server.allowed_tools is None or bool({tool.name, ALL} & set(server.allowed_tools))
    if server.allowed_tools is not None:
        return tool.name in server.allowed_tools or ALL in server.allowed_tools
    if server.trusted and tool.read_only is not None:
        return tool.read_only
    return looks_up(tool.name) and tool.read_only is not False


def looks_up(name: str) -> bool:
    """Whether a tool's name says that it only reads: `get_weather`, `listFiles`, but not `find_and_replace`."""
    words = [word.lower() for word in _WORDS.findall(name)]
    return bool(words) and words[0] in LOOKS_UP and not JOINS & set(words)
