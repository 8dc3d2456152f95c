"""Finds stop strings across the borders of tokens, and holds back text that may be the beginning of one."""

from collections import deque

from pippin.core.events import Token

Shown = list[tuple[str, tuple[Token, ...]]]
"""Pieces of text that may be sent now, with the tokens that begin in each."""


class StopFinder:
    """Looks for stop strings in the text of one stream. `found` is the one that ended it.

    The result does not depend on how the text was cut into tokens: `found` is the stop string that is complete first,
    and of several that are complete at the same character, the longest.
    """

    def __init__(self, stops: tuple[str, ...], *, include: bool = False) -> None:
        self._stops = stops
        self._include = include
        self._begun = frozenset(stop[:size] for stop in stops for size in range(1, len(stop)))
        self._longest = max(map(len, stops), default=1)
        self._held = ""
        self._shown = 0  # characters
        self._waiting: deque[tuple[int, Token]] = deque()  # with the character at which each token begins
        self.found: str | None = None

    def feed(self, text: str, tokens: tuple[Token, ...] = ()) -> Shown:
        """Add text and the tokens that begin with it; return what may be sent now."""
        end = self._shown + len(self._held)
        self._waiting.extend((end, token) for token in tokens)
        if not self._stops:
            return self._release(text)
        self._held += text
        match = self._first()
        if match is not None:
            begin, self.found = match
            shown = self._held[: begin + (len(self.found) if self._include else 0)]
            self._held = ""
            released = self._release(shown)
            self._waiting.clear()
            return released
        keep = self._begun_length()
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return self._release(shown)

    def finish(self) -> Shown:
        """End the stream, and return the text that was held back, which is no stop string."""
        held, self._held = self._held, ""
        released = self._release(held)
        # The bytes of these tokens never became a character.
        if self._waiting:
            released.append(("", tuple(token for _, token in self._waiting)))
            self._waiting.clear()
        return released

    def _first(self) -> tuple[int, str] | None:
        found = [
            (start + len(stop), start, stop) for stop in self._stops if (start := self._held.find(stop)) >= 0
        ]
        if not found:
            return None
        _, start, stop = min(found)
        return start, stop

    def _begun_length(self) -> int:
        for size in range(min(self._longest - 1, len(self._held)), 0, -1):
            if self._held[-size:] in self._begun:
                return size
        return 0

    def _release(self, text: str) -> Shown:
        begin, self._shown = self._shown, self._shown + len(text)
        if not self._waiting:
            return [(text, ())] if text else []
        pieces: Shown = []
        cut = begin
        while self._waiting and self._waiting[0][0] < self._shown:
            start, token = self._waiting.popleft()
            if start > cut:
                pieces.append((text[cut - begin : start - begin], ()))
                cut = start
            end = min(self._waiting[0][0], self._shown) if self._waiting else self._shown
            pieces.append((text[cut - begin : end - begin], (token,)))
            cut = end
        if cut < self._shown:
            pieces.append((text[cut - begin :], ()))
        return pieces
