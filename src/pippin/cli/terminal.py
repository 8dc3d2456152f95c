"""Output for users: tables, sizes, times, and progress on a terminal or in a log."""

import re
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TextIO

import msgspec

Progress = Callable[[int, int, str], None]
"""Called with `done`, `total`, and what is being counted."""

SECONDS_BETWEEN_LINES: Final = 2.0
CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters, which could move the cursor or rename the window."""


def clean(text: str) -> str:
    """The text of a model, a tool or another machine, without control characters."""
    return CONTROLS.sub("", text)


def say(text: str, stream: TextIO | None = None) -> None:
    """Print in one write, so that no log line comes in between if both streams share a file or a terminal."""
    stream = stream or sys.stdout
    stream.write(f"{clean(text)}\n")
    stream.flush()


def as_json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value)).decode()


def remark(text: str, stream: TextIO | None = None, *, behind: int = 0) -> None:
    """`say` sentences, wrapped between words where a terminal shows them: all but the first line of each begin behind
    so many columns."""
    stream = stream or sys.stdout
    if stream.isatty():
        width = shutil.get_terminal_size().columns
        wrapper = textwrap.TextWrapper(width, subsequent_indent=" " * behind, break_long_words=False)
        text = "\n".join(map(wrapper.fill, text.split("\n")))
    say(text, stream)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of left-aligned columns, each as wide as its content."""
    rows = [[clean(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in [headings, *rows]) for column in range(len(headings))]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in [headings, *rows]
    )
    return "\n".join(line.rstrip() for line in lines)


def size(count: int) -> str:
    """A size in bytes for users, in decimal units like those of shops and file managers."""
    amount = float(count)
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"


def ago(seconds: float) -> str:
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        count = int(seconds // length)
        if count:
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"


@contextmanager
def progress(
    title: str, *, bytes_counted: bool = False, write: Callable[[str], None] | None = None
) -> Iterator[Progress]:
    """A progress bar on a terminal; otherwise `write`, or else standard error, gets a line every few seconds."""
    if sys.stderr.isatty():
        with _bar(title, bytes_counted=bytes_counted) as tell:
            yield tell
    else:
        yield _lines(title, write or (lambda text: say(text, sys.stderr)), bytes_counted=bytes_counted)


@contextmanager
def _bar(title: str, *, bytes_counted: bool) -> Iterator[Progress]:
    from rich import progress as rich_progress
    from rich.console import Console

    amount = rich_progress.DownloadColumn() if bytes_counted else rich_progress.MofNCompleteColumn()
    with rich_progress.Progress(
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(),
        amount,
        *([rich_progress.TransferSpeedColumn()] if bytes_counted else []),
        rich_progress.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bars:
        task = bars.add_task(title, total=None)

        def tell(done: int, total: int, what: str) -> None:
            bars.update(task, completed=done, total=total or None, description=f"{title} {what}".strip())

        yield tell


def _lines(title: str, write: Callable[[str], None], *, bytes_counted: bool) -> Progress:
    last, shown = -SECONDS_BETWEEN_LINES, (0, 0, "")

    def tell(done: int, total: int, what: str) -> None:
        nonlocal last, shown
        now = time.monotonic()
        if shown == (done, total, what) or (now - last < SECONDS_BETWEEN_LINES and done < total):
            return
        last, shown = now, (done, total, what)
        amount = f"{size(done)} of {size(total)}" if bytes_counted else f"{done} of {total}"
        # Without a total there is nothing to count.
        write(" ".join(filter(None, (title, amount if total else "", what))))

    return tell
