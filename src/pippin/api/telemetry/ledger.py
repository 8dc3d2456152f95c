"""What is told of requests while they run, and what each key has used of each model over the server's life, on disk:
requests, tokens, seconds.

Figures of use are gathered in memory and added to the file's every few seconds, so that several servers may share the
file.
"""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from pippin.api.sqlite import Schema, SQLite, open_file
from pippin.core.errors import ErrorKind, ServerError
from pippin.core.events import Accepted, Event

log = logging.getLogger(__name__)

FILE: Final = "usage.sqlite3"
WRITE_EVERY: Final = 10.0  # seconds


class RequestObserver:
    """Is told of one request's life, in order; `closed` is always the last call. This one counts nothing."""

    def accepted(self, accepted: Sequence[Accepted]) -> None:
        pass

    def events(self, events: Sequence[Event]) -> None:
        """Events have come: all those of one wake-up of the event loop."""

    def failed(self, kind: ErrorKind) -> None:
        pass

    def closed(self) -> None:
        pass


class Observer:
    """Is told of all requests; this one counts nothing."""

    def request(self, operation: str, model: str, *, stream: bool) -> RequestObserver:
        """A request begins; `operation` names the dialect or the endpoint: `chat_completions`, `rerank`."""
        return RequestObserver()

    def http(self, method: str, path: str, status: int, seconds: float) -> None:
        """An HTTP exchange ended."""


class Used(Struct, kw_only=True):
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of the prompt tokens
    completion_tokens: int = 0
    forced_tokens: int = 0  # of the completion tokens, by grammars
    accepted_tokens: int = 0  # of the completion tokens, which speculation proposed
    seconds: float = 0.0  # from the start of each answer to its end

    def add(self, other: "Used") -> None:
        for name in FIGURES:
            setattr(self, name, getattr(self, name) + getattr(other, name))


FIGURES: Final = Used.__struct_fields__
_COLUMNS: Final = ", ".join(FIGURES)
SCHEMA: Final = Schema(
    1,
    "CREATE TABLE IF NOT EXISTS used (key TEXT, model TEXT, "
    + ", ".join(f"{name} REAL" if name == "seconds" else f"{name} INTEGER" for name in FIGURES)
    + ", PRIMARY KEY (key, model)) WITHOUT ROWID",
)
_ADD: Final = (
    f"INSERT INTO used (key, model, {_COLUMNS}) VALUES (?, ?, {', '.join('?' * len(FIGURES))}) "
    "ON CONFLICT DO UPDATE SET " + ", ".join(f"{name} = {name} + excluded.{name}" for name in FIGURES)
)

Row = tuple[str, str]
"""The name of a key, empty for callers without one, and a model."""


class Ledger:
    def __init__(self) -> None:
        self._new: dict[Row, Used] = {}  # not written yet
        self._file: SQLite | None = None

    def add(self, key: str, model: str, used: Used) -> None:
        self._new.setdefault((key, model), Used()).add(used)

    async def keep(self, path: Path) -> None:
        """Write what is new to the file, and again until this is cancelled; then for the last time."""
        try:
            self._file = open_file(path, SCHEMA)  # at once: whoever cancels this meanwhile would lose figures
        except ServerError as error:
            log.warning("Usage is counted from this start on: %s", error.report.message)
            return
        try:
            while True:
                await asyncio.sleep(WRITE_EVERY)
                await asyncio.to_thread(self._write)
        finally:
            self._write()
            file, self._file = self._file, None
            file.close()

    def _write(self) -> None:
        new, self._new = self._new, {}
        try:
            if self._file is not None and new:
                with self._file.transaction() as connection:
                    rows = [(*row, *msgspec.structs.astuple(used)) for row, used in new.items()]
                    connection.executemany(_ADD, rows)
        except ServerError:  # a full disk, which the log tells: another time
            for (key, model), used in new.items():
                self.add(key, model, used)

    def read(self) -> dict[Row, Used]:
        """All figures, written or not, in the order of their rows. Raises `ServerError`."""
        found: dict[Row, Used] = {}
        if self._file is not None:
            with self._file.transaction() as connection:
                for key, model, *figures in connection.execute(f"SELECT key, model, {_COLUMNS} FROM used"):
                    found[key, model] = Used(**dict(zip(FIGURES, figures, strict=True)))
        for row, used in list(self._new.items()):
            found.setdefault(row, Used()).add(used)
        return dict(sorted(found.items()))
