"""Names fields that no contract knows once in the log, so that a misspelt one can be found."""

import logging

log = logging.getLogger(__name__)

REMEMBERED = 256


class UnknownFields:
    def __init__(self) -> None:
        self._named: set[tuple[str, str]] = set()

    def note(self, kind: str, names: tuple[str, ...]) -> None:
        for name in names:
            if (kind, name) in self._named or len(self._named) >= REMEMBERED:
                continue
            self._named.add((kind, name))
            log.warning("Ignored the unknown field %r of %s; it is named here once.", name, kind)
