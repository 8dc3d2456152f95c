"""Answers MCP servers that ask a person for input during a call: behind an API there is nobody to ask.

Exception: if the operator trusts the server, and every required field of its form has a default, the defaults are the
answer.
"""

import logging
from typing import Any, Final

import mcp_types

from pippin.config.mcp_file import McpServer

log = logging.getLogger(__name__)

DECLINED: Final = "declined, because nobody is there to answer; with `trust`, defaults are the answer"


class Answers:
    """Answers one server's requests for input."""

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._told = False

    async def __call__(self, context: Any, params: mcp_types.ElicitRequestParams) -> mcp_types.ElicitResult:
        if self._server.trusted and isinstance(params, mcp_types.ElicitRequestFormParams):
            defaults = defaults_of(params.requested_schema)
            if defaults is not None:
                return mcp_types.ElicitResult(action="accept", content=defaults)
        if not self._told:  # once, without the question: it may contain anything
            self._told = True
            log.warning(
                "A tool of the MCP server %s asked a person something: %s.", self._server.name, DECLINED
            )
        return mcp_types.ElicitResult(action="decline")


def defaults_of(schema: Any) -> dict[str, Any] | None:
    """The defaults of a form; None if a required field has none."""
    fields: dict[str, Any] = schema.get("properties") or {}
    defaults = {
        name: field["default"]
        for name, field in fields.items()
        if isinstance(field, dict) and "default" in field
    }
    return defaults if set(schema.get("required") or ()) <= set(defaults) else None
