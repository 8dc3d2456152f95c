"""Reads the user's input, with history, completion of commands, and multi-line texts."""

import contextlib
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

MARK: Final = ">>> "
GOING_ON: Final = "... "
QUOTES: Final = '"""'


def line_reader(history: Path, commands: Iterable[str]) -> Callable[[str], str]:
    """A function that reads a line after a prompt, and completes these commands.

    It raises `EOFError` at ctrl-D, `KeyboardInterrupt` at ctrl-C.
    """
    from prompt_toolkit import PromptSession
    from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.history import FileHistory
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    bindings = KeyBindings()

    @bindings.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    history.parent.mkdir(parents=True, exist_ok=True)
    history.touch(mode=0o600)  # questions are private
    session: PromptSession[str] = PromptSession(
        history=FileHistory(str(history)),
        auto_suggest=AutoSuggestFromHistory(),
        completer=WordCompleter([f"/{name}" for name in commands], sentence=True),
        complete_while_typing=False,
        key_bindings=bindings,
        prompt_continuation=GOING_ON,
    )
    return session.prompt


def heed_interrupts() -> None:
    """Make ctrl-C raise `KeyboardInterrupt` in the main thread of a conversation on a terminal.

    Shells start background jobs with SIGINT ignored, and their children inherit that. Python then installs no handler,
    and an answer could not be stopped.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def unseen_keys() -> Iterator[None]:
    """Do not echo keys while an answer is written: they would appear inside it. The next prompt gets the keys; ctrl-C
    stops the answer and drops them, as on any terminal."""
    if not sys.stdin.isatty():
        yield
        return
    import termios

    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    changed = termios.tcgetattr(keyboard)
    changed[3] &= ~termios.ECHO  # the local modes
    termios.tcsetattr(keyboard, termios.TCSADRAIN, changed)
    try:
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def read_entry(read: Callable[[str], str]) -> str:
    """Read one entry: a line, or all lines between two `\"\"\"`."""
    text = read(MARK)
    if not text.lstrip().startswith(QUOTES):
        return text.strip()
    text = text.lstrip()[len(QUOTES) :]
    while not text.rstrip().endswith(QUOTES):
        text += "\n" + read(GOING_ON)
    return text.rstrip()[: -len(QUOTES)].strip()
