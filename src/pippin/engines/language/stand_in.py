"""Stands in for the output room until it lands."""

from typing import Protocol

from pippin.core.events import Event, PartDelta, PartEnded, PartStarted, Token


class ToolFormat(Protocol):
    name: str
    markers: tuple[str, ...]
    stops: tuple[str, ...]


class ReasoningFormat(Protocol):
    name: str
    start: str
    end: str
    markers: tuple[str, ...]


class OutputReader:
    def __init__(self, *, choice: int, **_: object) -> None:
        self._choice = choice
        self._open = False
        self.thinking = False
        self.calls = 0
        self.done = False

    def feed(self, text: str, tokens: tuple[Token, ...] = (), completed: int = 0) -> list[Event]:
        events: list[Event] = []
        if not self._open and (text or tokens):
            self._open = True
            events.append(PartStarted(self._choice, 0, "text"))
        if text or tokens:
            events.append(PartDelta(self._choice, 0, text, tokens, completed))
        return events

    def finish(self) -> list[Event]:
        return [PartEnded(self._choice, 0)] if self._open else []
