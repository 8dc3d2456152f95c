"""Stop strings, found across token borders, and text that must wait until it is no part of one."""

from collections import deque

from pippin.core.events import Token

Shown = list[tuple[str, tuple[Token, ...]]]
"""Text that may be shown now, with the tokens that begin in each piece of it."""


class StopFinder:
    """Holds back text that may be the beginning of a stop string.

    What is found does not depend on how the text was cut: it is the stop string that is complete first, and of
    several that are complete at once, the longest.
    """

    def __init__(self, stops: tuple[str, ...], *, include: bool = False) -> None:
        self._stops = stops
        self._include = include
        self._begun = frozenset(stop[:size] for stop in stops for size in range(1, len(stop)))
        self._longest = max(map(len, stops), default=1)
        self._held = ""
        self._shown = 0  # characters
        self._waiting: deque[tuple[int, Token]] = deque()  # where each token begins
        self.found: str | None = None

    def feed(self, text: str, tokens: tuple[Token, ...] = ()) -> Shown:
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
        """The text is over: what was held back was no stop string."""
        held, self._held = self._held, ""
        released = self._release(held)
        if self._waiting:  # tokens of a character that never became whole
            released.append(("", tuple(token for _, token in self._waiting)))
            self._waiting.clear()
        return released

    def _first(self) -> tuple[int, str] | None:
        found = [
            (place + len(stop), place, stop) for stop in self._stops if (place := self._held.find(stop)) >= 0
        ]
        if not found:
            return None
        _, place, stop = min(found)
        return place, stop

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
            place, token = self._waiting.popleft()
            if place > cut:
                pieces.append((text[cut - begin : place - begin], ()))
                cut = place
            end = min(self._waiting[0][0], self._shown) if self._waiting else self._shown
            pieces.append((text[cut - begin : end - begin], (token,)))
            cut = end
        if cut < self._shown:
            pieces.append((text[cut - begin :], ()))
        return pieces
