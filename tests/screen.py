"""A terminal with a screen: runs a program in it, tells what is to be seen, and draws it as SVG for the documents."""

import io
import os
import re
import time
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import pexpect
import pyte
from rich.console import Console
from rich.style import Style
from rich.text import Text

PICTURES: Final = Path(__file__).resolve().parents[1] / "docs" / "pictures"
SVG: Final = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g>
</g>
</svg>
"""
"""Rich's own drawing of a terminal without the fonts that it fetches from elsewhere."""


LOOK: Final = {
    "TERM": "xterm-256color",
    "COLORTERM": "truecolor",
    "LANG": "C.UTF-8",
    "PROMPT_TOOLKIT_NO_CPR": "1",  # this terminal answers no questions
}


class Screen:
    """A program on a terminal of so many columns and lines."""

    def __init__(
        self,
        command: list[str],
        environment: dict[str, str],
        folder: Path,
        columns: int = 96,
        lines: int = 26,
    ) -> None:
        self._shown = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._shown)
        self._child: Any = pexpect.spawn(
            command[0],
            command[1:],
            env={
                **environment,
                "TERM": "xterm-256color",
                "COLORTERM": "truecolor",
                "LANG": "C.UTF-8",
                "PROMPT_TOOLKIT_NO_CPR": "1",
            },  # type: ignore[arg-type]
            cwd=str(folder),
            dimensions=(lines, columns),
            timeout=None,
        )

    def type(self, text: str) -> None:
        self._child.send(text)

    def wait_for(self, pattern: str, seconds: float = 60) -> str:
        """Read until the screen shows it; gives the screen's text."""
        deadline = time.monotonic() + seconds
        while not re.search(pattern, self.text()):
            assert time.monotonic() < deadline, f"no {pattern!r} on:\n{self.text()}"
            self._read()
        return self.text()

    def settle(self, seconds: float = 0.5) -> str:
        """Read until nothing has come for a while."""
        while self._read(seconds):
            pass
        return self.text()

    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self._shown.display)

    def close(self) -> None:
        self._child.close(force=True)

    def picture(self, name: str, title: str) -> str:
        """Draw the screen, and keep it for the documents where `PIPPIN_PICTURES` asks for it."""
        lines = self.text().rstrip("\n").count("\n") + 1
        console = Console(
            record=True,
            width=self._shown.columns,
            file=io.StringIO(),
            force_terminal=True,
            color_system="truecolor",
        )
        for row in range(lines):
            console.print(self._line(row), soft_wrap=True)
        drawn = console.export_svg(title=title, code_format=SVG, unique_id="terminal")
        path = PICTURES / f"{name}.svg"
        if os.environ.get("PIPPIN_PICTURES"):
            path.write_text(drawn, "utf-8")
        assert path.exists(), "take it with PIPPIN_PICTURES=1"
        return drawn

    def _read(self, seconds: float = 0.1) -> bool:
        try:
            self._stream.feed(self._child.read_nonblocking(65536, timeout=seconds))
        except pexpect.TIMEOUT:
            return False
        except pexpect.EOF:
            time.sleep(0.05)
            return False
        return True

    def _line(self, row: int) -> Text:
        """A row of the screen, cells of one look together."""
        line = Text()
        cells = [self._shown.buffer[row][column] for column in range(self._shown.columns)]
        for style, run in groupby(cells, key=_style):
            line.append("".join(cell.data for cell in run), style)
        line.rstrip()
        return line


def _style(cell: Any) -> Style:
    return Style(
        color=_colour(cell.fg),
        bgcolor=_colour(cell.bg),
        bold=cell.bold,
        italic=cell.italics,
        reverse=cell.reverse,
        underline=cell.underscore,
    )


def _colour(name: str) -> str | None:
    """Rich's name for a colour of pyte's: a name of the sixteen, or six hexadecimal digits."""
    if name == "default":
        return None
    if re.fullmatch(r"[0-9a-f]{6}", name):
        return f"#{name}"
    name = {"brown": "yellow", "brightbrown": "bright_yellow"}.get(name, name)
    return name.replace("bright", "bright_") if name.startswith("bright") and "_" not in name else name
