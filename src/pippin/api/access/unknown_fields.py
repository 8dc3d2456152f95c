"""Names fields that no contract knows once in the log, so that a misspelt one can be found."""

import logging
import re
from collections.abc import Collection
from typing import Final

from pippin.config.errors import nearest

log = logging.getLogger(__name__)

REMEMBERED = 256
FIELD: Final = re.compile(r"[A-Za-z_]\w{0,63}(\[\d+\])?", re.ASCII)
"""What a misspelt field can look like; other keys may be a client's words, which are not for the log."""


class UnknownFields:
    def __init__(self) -> None:
        self._named: set[tuple[str, str]] = set()

    def note(self, kind: str, names: tuple[str, ...], known: Collection[str] = ()) -> None:
        """`known`: the names that one of `names` may have been meant for."""
        for given in names:
            place, dot, last = given.rpartition(".")
            name = place + dot + (last if FIELD.fullmatch(last) else "?")
            if (kind, name) in self._named or len(self._named) >= REMEMBERED:
                continue
            self._named.add((kind, name))
            hint = "" if "." in name else nearest(name, known)
            log.warning("Ignored the unknown field %r of %s; it is named here once.%s", name, kind, hint)
