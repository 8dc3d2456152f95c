"""What can be wrong with a configuration: one clear line for the person who wrote it."""

import difflib
from collections.abc import Iterable

LONGEST_LINE = 500


class ConfigError(Exception):
    """A value or name that Pippin cannot take. The message names where it stands and the way out, in one line."""

    def __init__(self, message: str) -> None:
        line = "".join(letter if letter.isprintable() else " " for letter in message)
        super().__init__(" ".join(line.split())[:LONGEST_LINE])


def nearest(name: str, names: Iterable[str]) -> str:
    """` Did you mean ...?`, or nothing where no name is close."""
    known = {candidate.lower(): candidate for candidate in names}
    close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.6)
    return f" Did you mean `{known[close[0]]}`?" if close else ""
