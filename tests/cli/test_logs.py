"""The log is written beside the event loop: nothing is lost in ordinary times, and nobody waits in others."""

import errno
import io
import logging
import threading
import time
from pathlib import Path

import pytest

from pippin.cli import logs
from pippin.cli.logs import LogFile, LogWriter


class Slow(logging.Handler):
    """Writes when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.may = threading.Event()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.may.wait(30)
        self.lines.append(record.getMessage())


def record(text: str, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord("pippin", logging.INFO, __file__, 1, text, arguments, None)


def test_lines_are_written_in_order_and_all_before_the_end() -> None:
    slow = Slow()
    slow.may.set()
    writer = LogWriter([slow])
    for number in range(500):
        writer.handle(record("line %d", number))
    writer.close()
    assert slow.lines == [f"line {number}" for number in range(500)]


def test_a_line_says_what_was_true_when_it_was_logged() -> None:
    slow, facts = Slow(), ["then"]
    writer = LogWriter([slow])
    writer.handle(record("it was %s", facts))
    facts[0] = "now"
    slow.may.set()
    writer.close()
    assert slow.lines == ["it was ['then']"]


def test_who_logs_never_waits_and_lines_without_room_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "WAITING", 10)
    slow = Slow()
    writer = LogWriter([slow])
    for number in range(100):
        writer.handle(record("line %d", number))  # would wait for 30 seconds
    slow.may.set()
    writer.close()
    assert slow.lines[0] == "line 0"
    [missing] = [line for line in slow.lines if "missing" in line]
    assert int(missing.split()[0]) + len(slow.lines) - 1 == 100


def test_a_handler_that_never_returns_does_not_keep_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LAST_WORDS", 0.05)
    slow = Slow()
    writer = LogWriter([slow])
    writer.handle(record("stuck"))
    began = time.monotonic()
    writer.close()
    assert time.monotonic() - began < 10
    slow.may.set()


class FullDisk(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_file_that_can_not_be_written_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = LogFile(tmp_path / "log")
    ordinary = full.setStream(FullDisk())  # type: ignore[arg-type]
    assert ordinary is not None
    ordinary.close()
    for _ in range(3):
        full.handle(record("words that nobody reads"))
    told = capsys.readouterr().err
    assert told.count("can't be written: [Errno 28] No space left on device") == 1
    assert "Traceback" not in told


def test_a_file_that_another_program_moves_away_is_begun_anew(tmp_path: Path) -> None:
    own = LogFile(tmp_path / "log")
    own.emit(logging.makeLogRecord({"msg": "before"}))
    (tmp_path / "log").rename(tmp_path / "log.1")
    own.emit(logging.makeLogRecord({"msg": "after"}))
    assert [(tmp_path / name).read_text() for name in ("log.1", "log")] == ["before\n", "after\n"]
    own.close()
