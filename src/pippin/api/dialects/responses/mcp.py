"""Builds the items of MCP tools that were called while a response was made."""

from collections.abc import Iterator
from typing import Any

from pippin.api.dialects.responses.output import ItemStatus, Json, OutputItem
from pippin.core.events import PartDelta, PartStarted, ToolsListed


class ListedToolsItem(OutputItem):
    """What a server offers; it is there at once."""

    def __init__(self, id: str, index: int, listed: ToolsListed) -> None:
        super().__init__(id, index)
        self._listed = listed

    def item(self) -> Json:
        tools = [] if self.status == "in_progress" else [self._tool(tool) for tool in self._listed.tools]
        return {
            "id": self.id,
            "type": "mcp_list_tools",
            "server_label": self._listed.server,
            "tools": tools,
            "error": None,
        }

    def opened(self) -> Iterator[Json]:
        yield self._event("response.mcp_list_tools.in_progress")

    def closed(self) -> Iterator[Json]:
        yield self._event("response.mcp_list_tools.completed")

    @staticmethod
    def _tool(tool: Any) -> Json:
        schema = tool.parameters or {"type": "object"}
        described = {"name": tool.name, "description": tool.description, "input_schema": schema}
        return described | {"annotations": None}


class McpCallItem(OutputItem):
    """A call and, later, its result: other items may begin in between."""

    def __init__(self, id: str, index: int, started: PartStarted) -> None:
        super().__init__(id, index)
        self.call_id = started.id
        self._name = started.name
        self._server = started.server
        self._result: str | None = None
        self._failed = False

    def item(self) -> Json:
        failure = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": self._result}]}
        return {
            "id": self.id,
            "type": "mcp_call",
            "status": "failed" if self._failed and self.status == "completed" else self.status,
            "approval_request_id": None,
            "server_label": self._server,
            "name": self._name,
            "arguments": self.text,
            "output": None if self._failed else self._result,
            "error": failure if self._failed else None,
        }

    def opened(self) -> Iterator[Json]:
        yield self._event("response.mcp_call.in_progress")

    def grown(self, delta: PartDelta) -> Iterator[Json]:
        if delta.text:
            yield self._event("response.mcp_call_arguments.delta", delta=delta.text)

    def asked(self) -> Json:
        """Its arguments are complete; the call is made now."""
        return self._event("response.mcp_call_arguments.done", arguments=self.text)

    def answered(self, text: str, *, is_error: bool) -> Iterator[Json]:
        self._result, self._failed = text, is_error
        yield from self.close("completed")

    def close(self, status: ItemStatus) -> Iterator[Json]:
        if self._result is not None:
            yield self._event(f"response.mcp_call.{'failed' if self._failed else 'completed'}")
        yield from super().close(status)


class McpCalls:
    """The calls of a response that wait for their results."""

    def __init__(self) -> None:
        self._waiting: dict[str | None, McpCallItem] = {}
        self._answering: PartStarted | None = None
        self._pieces: list[str] = []

    def wait_for(self, item: McpCallItem) -> Json:
        self._waiting[item.call_id] = item
        return item.asked()

    def begin_result(self, started: PartStarted) -> None:
        self._answering, self._pieces = started, []

    def grow_result(self, delta: PartDelta) -> bool:
        """Whether the piece was of a result."""
        if self._answering is None:
            return False
        self._pieces.append(delta.text)
        return True

    def end_result(self) -> Iterator[Json]:
        started, self._answering = self._answering, None
        if started is not None and (item := self._waiting.pop(started.id, None)) is not None:
            yield from item.answered("".join(self._pieces), is_error=started.is_error)

    def abandon(self) -> Iterator[Json]:
        """The response ends without their results."""
        for item in self._waiting.values():
            yield from item.close("incomplete")
        self._waiting = {}
