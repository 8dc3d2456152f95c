"""Finds what a chat template left out of the texts of a conversation.

Whether a template writes all turns is tried on a skeleton (`forms.py`). But templates look into texts as well: they cut
them at a mark, or take words out. So what was said is looked for in the prompt, too. Each text is searched for behind
the one before it, which reads the prompt about once.
"""

import json
import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Final

from pippin.core.conversation import Message, Part, Text, ToolCall, ToolResult
from pippin.engines.language.prompt.messages import parsed_arguments, without_thought

MOST_SEARCHED: Final = 32
"""How often the prompt is searched for texts that are not in their order. Then the rest counts as found."""

HEAD: Final = 64  # characters of a text by which its place is found


class Proof:
    """What of a conversation is in a prompt."""

    def __init__(self, prompt: str, switches: re.Pattern[str] | None) -> None:
        """`switches` are words that the template takes out of what users and the system say, to act on them."""
        self.switched: list[int] = []  # messages with such words
        self._prompt, self._switches = prompt, switches
        self._left = MOST_SEARCHED * len(prompt)  # characters that may still be searched in vain
        # Systems, speakers, calls and results: templates have places or notations of their own for each.
        self._tracks = [_Track(), _Track(), _Track(), _Track()]

    def lost(self, messages: tuple[Message, ...]) -> int | None:
        """The index of the first message of which a part is not in the prompt."""
        for index, message in enumerate(messages):
            if not all(self._has_part(part, message.role, index) for part in message.parts):
                return index
        return None

    def _has_part(self, part: Part, role: str, index: int) -> bool:
        systems, speakers, calls, results = self._tracks
        match part:
            case Text(text) if role == "assistant":
                return self._has(without_thought(text), speakers)
            case Text(text):
                track = systems if role in ("system", "developer") else speakers
                return self._has(text, track) or self._has_switched(text, track, index)
            case ToolCall(_, name, arguments):
                said = (name, *_texts(parsed_arguments(arguments)))
                return all(self._has(text, calls) for text in said)
            case ToolResult(_, parts):
                return all(
                    self._has(text.text, results) or self._has_value(text.text, results)
                    for text in parts
                    if isinstance(text, Text)
                )
            case _:  # whoever places media counts them
                return True

    def _has_switched(self, text: str, track: "_Track", index: int) -> bool:
        if self._switches is None or not self._switches.search(text):
            return False
        self.switched.append(index)
        return all(self._has(piece, track) for piece in self._switches.split(text))

    def _has_value(self, text: str, track: "_Track") -> bool:
        """Whether all texts of a JSON value are there, which a template may write in its own notation."""
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return False
        return all(self._has(inner, track) for inner in _texts(value))

    def _has(self, text: str, track: "_Track") -> bool:
        text = text.strip()
        if self._left < 0:
            return True
        for _ in range(len(_NOTATIONS)):
            written = _NOTATIONS[track.notation](text)
            place = self._place(written, track.place)
            if place >= 0:
                track.place = place + len(written)
                return True
            self._left -= len(self._prompt) - track.place
            track.notation = (track.notation + 1) % len(_NOTATIONS)
        self._left -= track.place
        anywhere = any(notation(text) in self._prompt for notation in _NOTATIONS)
        return anywhere or _squeezed(text) in self._squeezed

    @cached_property
    def _squeezed(self) -> str:
        return _squeezed(self._prompt)

    def _place(self, text: str, start: int) -> int:
        # A long text is compared much faster than it is searched for.
        place = self._prompt.find(text[:HEAD], start)
        return place if self._prompt.startswith(text, place) else self._prompt.find(text, start)


class _Track:
    """How far what one kind of author said was found, and in which notation last."""

    def __init__(self) -> None:
        self.place = self.notation = 0


_NOTATIONS: Final = (
    lambda text: text,
    lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    lambda text: json.dumps(text)[1:-1],
    lambda text: repr(text)[1:-1],
)
"""How templates write a text: as it is, in JSON, in ASCII, in Python's notation."""


def _squeezed(text: str) -> str:
    """The text without white space, which templates may write otherwise."""
    return "".join(text.split())


def _texts(value: Any) -> Iterator[str]:
    """The texts of a JSON value, in their order."""
    waiting = [value]
    while waiting:
        match waiting.pop():
            case str(text):
                yield text
            case dict() as fields:
                waiting += [each for pair in reversed(fields.items()) for each in reversed(pair)]
            case list() as items:
                waiting += reversed(items)
            case _:
                pass
