"""Shows an answer as it arrives: rendered as markdown on a terminal, or as plain text if the output goes elsewhere."""

import contextlib
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Protocol

from pippin.cli.chat.client import Called, Ended, Part, Piece

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from rich.console import Console
    from rich.live import Live
    from rich.markdown import Markdown

CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters, which could move the cursor or rename the window; they are removed from a model's text."""
FRAMES: Final = 12  # per second


class Display(Protocol):
    """Shows the parts of an answer, inside the context of `opened_display`."""

    def show(self, part: Part) -> None: ...


def clean(text: str) -> str:
    return CONTROLS.sub("", text)


def split_blocks(text: str) -> list[str]:
    """The blocks of a markdown text, of which further text can only change the last.

    A paragraph may continue, and a list or a fence is open until something else follows.
    """
    tokens = _parser().parse(text)
    starts = [
        token.map[0] for token in tokens if token.level == 0 and token.map is not None and token.nesting >= 0
    ]
    lines = text.split("\n")
    cuts = [0, *starts[1:], len(lines)]
    return ["\n".join(lines[begin:end]) for begin, end in pairwise(cuts)]


def _parser() -> "MarkdownIt":
    """A markdown parser that treats HTML tags as text, because rich would drop them."""
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])


def _drawn(text: str) -> "Markdown":
    from rich.markdown import Markdown

    drawn = Markdown(text, code_theme="ansi_dark")
    drawn.parsed = _parser().parse(text)
    return drawn


class PlainDisplay:
    """Writes text as it arrives, for pipes. Reasoning is left out, so that readers get only the answer."""

    def show(self, part: Part) -> None:
        match part:
            case Piece("text", text):
                sys.stdout.write(text)
                sys.stdout.flush()
            case Called(str(name), _):
                print(f"\n[the model calls {name}]", file=sys.stderr)
            case _:
                pass


class MarkdownDisplay:
    """Renders markdown block by block. Finished blocks are printed permanently; the last one is redrawn with each
    piece, cut to its last lines that fit on the screen."""

    def __init__(self, console: "Console", live: "Live", *, show_reasoning: bool) -> None:
        self._console = console
        self._live = live
        self._show_reasoning = show_reasoning
        self._open = ""  # text whose last block may change
        self._thinking = False

    def show(self, part: Part) -> None:
        match part:
            case Piece("reasoning", text):
                self._think(clean(text))
            case Piece("text", text):
                self._end_thought()
                self._open += clean(text)
                self._print_finished()
                self._draw()
            case Called(str(name), _):
                self.flush()
                self._console.print(f"calls {name}", style="dim", markup=False)
            case Called() | Ended():
                pass

    def flush(self) -> None:
        """Print the rest permanently."""
        self._end_thought()
        rest, self._open = self._open, ""
        self._live.update("")
        for block in split_blocks(rest):
            self._print(block)

    def _think(self, text: str) -> None:
        if not self._show_reasoning:
            self._live.update("[dim]thinking ...[/dim]")
            self._thinking = True
            return
        self._thinking = True
        self._open += text
        *lines, self._open = self._open.split("\n")
        for line in lines:
            self._console.print(line, style="dim italic", markup=False, highlight=False)
        self._draw()

    def _end_thought(self) -> None:
        if not self._thinking:
            return
        self._thinking = False
        rest, self._open = self._open, ""
        self._live.update("")
        if rest:
            self._console.print(rest, style="dim italic", markup=False, highlight=False)
        if self._show_reasoning:
            self._console.print()

    def _print_finished(self) -> None:
        *finished, self._open = split_blocks(self._open)
        for block in finished:
            self._print(block)

    def _print(self, text: str) -> None:
        if text.strip():
            self._console.print(_drawn(text.strip("\n")))
            self._console.print()

    def _draw(self) -> None:
        from rich.console import Group
        from rich.text import Text

        if self._thinking:
            self._live.update(Text(self._open, style="dim italic"))
            return
        lines = self._console.render_lines(_drawn(self._open))
        room = max(1, self._console.height - 2)
        if len(lines) <= room:
            self._live.update(_drawn(self._open))
            return
        shown = [
            Text.assemble(*((piece.text, piece.style or "") for piece in line)) for line in lines[-room:]
        ]
        self._live.update(Group(*shown))


@contextlib.contextmanager
def opened_display(*, plain: bool, show_reasoning: bool) -> Iterator[Display]:
    """A display for one answer; it is flushed however the context is left."""
    if plain:
        yield PlainDisplay()
        return
    from rich.console import Console
    from rich.live import Live

    console = Console()
    with Live(console=console, refresh_per_second=FRAMES, transient=True, vertical_overflow="crop") as live:
        display = MarkdownDisplay(console, live, show_reasoning=show_reasoning)
        live.update("[dim]...[/dim]")
        try:
            yield display
        finally:
            display.flush()
