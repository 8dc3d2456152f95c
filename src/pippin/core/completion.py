"""Folds the event stream into a whole answer: the only source of replies that are not streamed."""

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import MsgspecError, Struct, field

from pippin.core.decoding import convert, from_json
from pippin.core.errors import ServerError
from pippin.core.events import (
    Event,
    Failed,
    Finished,
    PartDelta,
    PartEnded,
    PartKind,
    PartStarted,
    PromptEcho,
    Token,
    ToolsListed,
)
from pippin.core.link import merged


class CompletedPart(Struct, kw_only=True):
    kind: PartKind
    text: str = ""
    id: str | None = None
    name: str | None = None
    server: str | None = None
    is_error: bool = False
    gap: str = ""
    thought: bool = False  # streamed as text until its end showed that it was reasoning
    tokens: tuple[Token, ...] = ()


class CompletedChoice(Struct, kw_only=True):
    parts: list[CompletedPart] = field(default_factory=list)
    finished: Finished = Finished(0, "stop")  # until the one that ends the choice

    def text(self, kind: PartKind) -> str:
        return "".join(part.gap + part.text for part in self.parts if part.kind == kind)

    def tokens(self, *kinds: PartKind) -> tuple[Token, ...]:
        return tuple(token for part in self.parts if part.kind in kinds for token in part.tokens)

    def events(self, number: int) -> Iterator[PartStarted | PartDelta | PartEnded]:
        """The shortest stream of events that folds into the parts of this choice."""
        for index, part in enumerate(self.parts):
            yield PartStarted(
                number, index, part.kind, part.id, part.name, part.server, part.is_error, part.gap
            )
            if part.text or part.tokens:
                yield PartDelta(number, index, part.text, part.tokens)
            yield PartEnded(number, index)


class Completion(Struct, kw_only=True):
    choices: list[CompletedChoice] = field(default_factory=list)
    listed: list[ToolsListed] = field(default_factory=list)
    echo: PromptEcho | None = None

    def add(self, event: Event) -> None:
        """Fold in one event. Raises `ServerError` on `Failed`."""
        match event:
            case Failed(error):
                raise ServerError.of(error)
            case ToolsListed():
                self.listed.append(event)
            case PromptEcho():
                self.echo = event
            case PartStarted(choice):
                self._choice(choice).parts.append(convert(event, CompletedPart))
            case PartDelta(choice, index, text, tokens):
                parts = self._choice(choice).parts
                after_thought = index > 0 and parts[index - 1].thought
                parts[index].text += text.lstrip() if after_thought and not parts[index].text else text
                parts[index].tokens += tokens
            case PartEnded(choice, index, True):
                part = self._choice(choice).parts[index]
                part.kind, part.thought, part.text = "reasoning", True, part.text.rstrip()
            case Finished(choice):
                self._choice(choice).finished = event

    def _choice(self, number: int) -> CompletedChoice:
        while len(self.choices) <= number:
            self.choices.append(CompletedChoice())
        return self.choices[number]


def object_of(arguments: str) -> dict[str, Any] | None:
    """The object that a call's arguments say; None if a limit cut them off."""
    if not arguments.strip():
        return {}
    try:
        return from_json(arguments, dict[str, Any])
    except (MsgspecError, RecursionError):
        return None


def collect(events: Iterable[Event]) -> Completion:
    """Fold a generation's events into its answer."""
    completion = Completion()
    # Events of the whole answer sort first. Deltas are joined first, so that each text is copied once.
    for event in merged(sorted(events, key=lambda event: getattr(event, "choice", -1))):
        completion.add(event)
    return completion
