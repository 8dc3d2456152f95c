"""What each key has used of each model over the server's life, on disk: requests, tokens, seconds.

Figures of use are gathered in memory and added to the file's every few seconds, so that several servers may share the
file.
"""

import asyncio
import logging
from pathlib import Path
from typing import Final

import msgspec

from pippin.api.answers.answer import FIGURES, Row, Usage, Used
from pippin.api.sqlite import Schema, SQLite, open_file
from pippin.core.errors import ServerError

log = logging.getLogger(__name__)

FILE: Final = "usage.sqlite3"
WRITE_EVERY: Final = 10.0  # seconds


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


class Ledger:
    def __init__(self, new: Usage) -> None:
        """`new`: what is not written yet. It is taken from there."""
        self._new = new
        self._file: SQLite | None = None

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
        new = dict(self._new)
        self._new.clear()
        try:
            if self._file is not None and new:
                with self._file.transaction() as connection:
                    rows = [(*row, *msgspec.structs.astuple(used)) for row, used in new.items()]
                    connection.executemany(_ADD, rows)
        except ServerError:  # a full disk, which the log tells: another time
            for row, used in new.items():
                self._new[row].add(used)

    def read(self) -> dict[Row, Used]:
        """All figures, written or not, in the order of their rows. Raises `ServerError`."""
        found = Usage(Used)
        if self._file is not None:
            with self._file.transaction() as connection:
                for key, model, *figures in connection.execute(f"SELECT key, model, {_COLUMNS} FROM used"):
                    found[key, model] = Used(**dict(zip(FIGURES, figures, strict=True)))
        for row, used in list(self._new.items()):
            found[row].add(used)
        return dict(sorted(found.items()))
