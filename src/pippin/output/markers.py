"""Finding markers in text that arrives in pieces: what is plain, what is a marker, what must wait."""

import re


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
