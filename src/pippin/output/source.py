"""The text that a model produced and no reader has taken yet.

Readers of formats are generators: they `yield` to wait for more text, so that a format reads like a grammar,
and what it decides can't depend on where the stream was cut.
"""

import re
from collections.abc import Callable, Generator
from typing import TypeAlias, TypeVar


class Markers:
    """Literal strings. The leftmost one wins, then the longest; a tail that may yet become one waits."""

    def __init__(self, markers: tuple[str, ...]) -> None:
        longest_first = sorted(set(markers), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        self._beginnings = frozenset(marker[:size] for marker in markers for size in range(1, len(marker)))
        self._firsts = frozenset(marker[0] for marker in markers)
        self._reach = max((len(marker) for marker in markers), default=1) - 1

    def split(self, text: str, start: int, ended: bool) -> tuple[int, str | None]:
        """Where the plain part of `text[start:]` ends, and the marker that stands there.

        `None` for the marker means that what follows the plain part is the beginning of one, or nothing.
        """
        plain = len(text) if ended else self._held_from(text, start)
        match = self._pattern.search(text, start) if self._pattern else None
        if match and match.start() < plain:
            return match.start(), match.group()
        return plain, None

    def _held_from(self, text: str, start: int) -> int:
        for index in range(max(start, len(text) - self._reach), len(text)):
            if text[index] in self._firsts and text[index:] in self._beginnings:
                return index
        return len(text)


T = TypeVar("T")
Reading: TypeAlias = Generator[None, None, T]
Put: TypeAlias = Callable[[str], None]

SPACE = " \t\r\n"


class Malformed(Exception):
    """The text that follows is not what the format promises. What came after the last good point is not lost."""


class Source:
    def __init__(self) -> None:
        self._text = ""
        self._at = 0  # what is before it was taken
        self._taken: list[str] = []  # since `remember`
        self._position = 0
        self._remembering = False
        self.ended = False
        self.truncated = False

    @property
    def position(self) -> int:
        """Characters taken so far."""
        return self._position

    def push(self, text: str) -> None:
        self._text = self._text[self._at :] + text
        self._at = 0

    def close(self, *, truncated: bool) -> None:
        self.ended, self.truncated = True, truncated

    def remember(self) -> None:
        """Keep what is taken from here on, so that it can be given back as text."""
        self._taken, self._remembering = [], True

    def recall(self) -> str:
        """The text that was taken since `remember`; no more is kept."""
        taken = "".join(self._taken)
        self._taken, self._remembering = [], False
        return taken

    def rewind(self, taken: str) -> None:
        """Give back what was taken last, to be read in another way."""
        if self._at >= len(taken):
            self._at -= len(taken)
        else:
            self._text, self._at = taken + self._text[self._at :], 0
        self._position -= len(taken)

    def take(self, count: int) -> str:
        taken = self._text[self._at : self._at + count]
        self._at += count
        self._position += count
        if self._remembering:
            self._taken.append(taken)
        return taken

    def more(self) -> Reading[bool]:
        """Wait for text; False at the end."""
        while self._at == len(self._text):
            if self.ended:
                return False
            yield
        return True

    def peek(self) -> Reading[str]:
        """The next character, not taken; empty at the end."""
        return self._text[self._at] if (yield from self.more()) else ""

    def exactly(self, count: int) -> Reading[str]:
        """Take so many characters; malformed if the end comes before."""
        while len(self._text) - self._at < count:
            if self.ended:
                raise Malformed
            yield
        return self.take(count)

    def find(self, pattern: re.Pattern[str]) -> tuple[int, str]:
        """How many characters stand before the next match, and the match (empty if there is none yet)."""
        match = pattern.search(self._text, self._at)
        return (match.start() - self._at, match.group()) if match else (len(self._text) - self._at, "")

    def literal(self, *options: str) -> Reading[str | None]:
        """Take the longest of `options` that comes next, if one does."""
        while not self.ended and any(self._begins(option) for option in options):
            yield
        fitting = [option for option in options if self._text.startswith(option, self._at)]
        return self.take(len(max(fitting, key=len))) if fitting else None

    def _begins(self, option: str) -> bool:
        left = len(self._text) - self._at
        return left < len(option) and option.startswith(self._text[self._at :])

    def expect(self, *options: str) -> Reading[str]:
        found = yield from self.literal(*options)
        if found is None:
            raise Malformed
        return found

    def span(self, characters: str) -> Reading[str]:
        """Take all that follows of these characters."""
        taken = []
        while (yield from self.more()):
            end = self._at
            while end < len(self._text) and self._text[end] in characters:
                end += 1
            taken.append(self.take(end - self._at))
            if self._at < len(self._text):
                break
        return "".join(taken)

    def word(self, end: re.Pattern[str], limit: int = 256) -> Reading[str]:
        """Take what comes before the next match of a one-character pattern, or the end. Never empty."""
        pieces: list[str] = []
        left = limit
        while (yield from self.more()):
            count, found = self.find(end)
            pieces.append(self._take_within(count, left))
            left -= count
            if found:
                break
        if left == limit:
            raise Malformed
        return "".join(pieces)

    def _take_within(self, count: int, left: int) -> str:
        """Take; malformed at the limit itself, wherever the stream was cut."""
        if count > left:
            self.take(left)
            raise Malformed
        return self.take(count)

    def space(self) -> Reading[str]:
        return (yield from self.span(SPACE))

    def until(
        self, markers: Markers, put: Put, counts: Callable[[str], bool] = lambda _: True
    ) -> Reading[str | None]:
        """Put what comes before the next marker, piece by piece; take the marker, None at the end.

        `counts` is asked of each marker before it is taken; one that does not count is text.
        """
        while True:
            plain, marker = markers.split(self._text, self._at, self.ended)
            if plain > self._at:
                put(self.take(plain - self._at))
            if marker is not None and counts(marker):
                return self.take(len(marker))
            if marker is not None:
                put(self.take(1))
                continue
            if self.ended:
                return None
            yield

    def before(self, markers: Markers, limit: int = 256) -> Reading[tuple[str, str]]:
        """A short text and the marker that ends it, taken. Malformed if it is too long, or the end comes."""
        pieces: list[str] = []
        left = limit
        while True:
            plain, marker = markers.split(self._text, self._at, self.ended)
            count = plain - self._at
            pieces.append(self._take_within(count, left))
            left -= count
            if marker is not None:
                return "".join(pieces), self.take(len(marker))
            if self.ended:
                raise Malformed
            yield
