"""What one run of a tool loop said, as the model reads it again and as the client sees it."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from pippin.core.conversation import Reasoning, Text, ToolCall, ToolResult
from pippin.core.events import Event, Finished, PartDelta, PartEnded, PartStarted, Progress
from pippin.mcp.tools import OfferedTool

LONGEST_ARGUMENTS: Final = 1 << 20  # characters of one call


class ToolRound:
    """Numbers its parts on from the last round's. Calls of MCP tools become parts of a kind of their own."""

    def __init__(
        self,
        offered: Mapping[str, OfferedTool],
        index: int,
        *,
        first: bool,
        results: Sequence[Event] = (),
    ) -> None:
        """`results`: what the tools answered before it, as the client sees it."""
        self.results = list(results)
        self.finished: Finished | None = None
        self.client_calls = 0
        self.next_index = index
        self._offered = offered
        self._first = first
        self._indexes: dict[int, int] = {}
        self._parts: dict[int, tuple[PartStarted, list[str]]] = {}

    def seen(self, event: Event) -> Event | None:
        match event:
            case PartStarted(index=index, kind=kind, name=name):
                self._parts[index] = (event, [])
                self._indexes[index] = self._next()
                shown = msgspec.structs.replace(event, index=self._indexes[index])
                if kind != "tool_call":
                    return shown
                if (tool := self._offered.get(name or "")) is None:
                    self.client_calls += 1
                    return shown
                return msgspec.structs.replace(
                    shown, kind="server_call", name=tool.remote.name, server=tool.server
                )
            case PartDelta(index=index, text=text):
                self._parts[index][1].append(text)
                return self._renumbered(event)
            case PartEnded():
                return self._renumbered(event)
            case Progress() if not self._first:
                return None  # a later round's prompt is no business of the client's
            case _:
                return event

    @property
    def calls(self) -> list[ToolCall]:
        """The calls of MCP tools."""
        return [
            ToolCall(started.id or f"call_{index}", started.name or "", "".join(texts)[:LONGEST_ARGUMENTS])
            for index, (started, texts) in self._parts.items()
            if started.kind == "tool_call" and started.name in self._offered
        ]

    def shown(self, results: Sequence[ToolResult]) -> list[Event]:
        """What the tools answered, as parts."""
        events: list[Event] = []
        for result in results:
            index = self._next()
            text = "".join(part.text for part in result.parts if isinstance(part, Text))
            started = PartStarted(0, index, "server_result", result.call_id, is_error=result.is_error)
            events += [started, PartDelta(0, index, text), PartEnded(0, index)]
        return events

    def parts(self) -> list[Text | Reasoning | ToolCall]:
        """The whole turn, for the model to read again."""
        said: list[Text | Reasoning | ToolCall] = []
        for started, texts in self._parts.values():
            text = "".join(texts)
            if started.kind == "text" and text:
                said.append(Text(text))
            elif started.kind == "reasoning" and text:
                said.append(Reasoning(text))
        return said + list(self.calls)

    def _next(self) -> int:
        index = self.next_index
        self.next_index += 1
        return index

    def _renumbered(self, event: PartDelta | PartEnded) -> Event:
        return msgspec.structs.replace(event, index=self._indexes[event.index])
