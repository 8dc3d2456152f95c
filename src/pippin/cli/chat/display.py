"""Writes an answer as it arrives: to a terminal with its reasoning dimmed, or to a pipe without it.

Nothing is drawn anew or moved, so that code and mathematics can be copied as the model wrote them.
"""

import sys

from pippin.cli.chat.client import Called, Part, Piece
from pippin.cli.terminal import clean, say

DIM, PLAIN = "\x1b[2m", "\x1b[0m"


class Display:
    """Shows the parts of one answer. `plain` is for pipes: readers get the answer alone."""

    def __init__(self, *, plain: bool, show_reasoning: bool) -> None:
        self._plain = plain
        self._show_reasoning = show_reasoning
        self._thinking = False

    def show(self, part: Part) -> None:
        match part:
            case Piece("reasoning", text) if not self._plain:
                shown = clean(text) if self._show_reasoning else "" if self._thinking else "thinking ..."
                _write(shown if self._thinking else DIM + shown)
                self._thinking = True
            case Piece("text", text):
                self.close()
                _write(text if self._plain else clean(text))
            case Called(str(name), _):
                self.close()
                say(f"\n[the model calls {name}]", sys.stderr)

    def close(self) -> None:
        """End a thought that is open: what follows it is not dimmed."""
        if self._thinking:
            _write(f"{PLAIN}\n\n")
        self._thinking = False


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
