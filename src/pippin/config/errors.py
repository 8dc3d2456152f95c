"""Configuration errors: one clear line for the person who wrote the configuration."""

import difflib
from collections.abc import Iterable

LONGEST_LINE = 500


class ConfigError(Exception):
    """An invalid value or name. The message gives its place and the remedy, in one line."""

    def __init__(self, message: str) -> None:
        line = "".join(letter if letter.isprintable() else " " for letter in message)
        super().__init__(" ".join(line.split())[:LONGEST_LINE])


def nearest(name: str, names: Iterable[str]) -> str:
    """` Did you mean ...?`, or an empty string if no name is close."""
    known = {candidate.lower(): candidate for candidate in names}
    close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.6)
    return f" Did you mean `{known[close[0]]}`?" if close else ""
