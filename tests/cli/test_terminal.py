"""What people see: tables, sizes, times, progress."""

import io
import logging
import re
import sys
from pathlib import Path

import pytest

from pippin.catalog import Catalog, CatalogRoots
from pippin.cli import greeting, terminal
from pippin.cli.greeting import curl_line
from pippin.cli.logs import TEXT, JsonFormatter, LogStream
from pippin.config.errors import kernels_command
from pippin.config.options.server import ModelEntry, ServerOptions


def test_columns_are_as_wide_as_they_need() -> None:
    assert terminal.table(("A", "LONG"), [("wide cell", "x"), ("y", "z")]) == (
        "A          LONG\nwide cell  x\ny          z"
    )


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1500, "2 kB"), (98_000_000, "98 MB"), (6_543_000_000, "6.5 GB")],
)
def test_sizes_are_decimal(count: int, text: str) -> None:
    assert terminal.size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(3, "just now"), (61, "1 minute ago"), (7300, "2 hours ago"), (90000, "1 day ago")]
)
def test_times_are_rounded_down(seconds: float, text: str) -> None:
    assert terminal.ago(seconds) == text


def test_without_a_terminal_progress_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    with terminal.progress("Loading m:", bytes_counted=True) as tell:
        for done in (1_000_000, 2_000_000, 4_000_000, 4_000_000, 4_000_000):
            tell(done, 4_000_000, "weights")
        tell(0, 0, "tokens")
        tell(0, 0, "numbers")
    assert capsys.readouterr().err.splitlines() == [
        "Loading m: 1 MB of 4 MB weights",
        "Loading m: 4 MB of 4 MB weights",
        "Loading m: tokens",
        "Loading m: numbers",
    ]


def test_on_a_terminal_progress_is_a_bar_that_goes_away(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    with terminal.progress("Loading m:") as tell:
        tell(1, 2, "weights")
    assert "of 2 weights" not in capsys.readouterr().err


@pytest.mark.parametrize("address", ["http://0.0.0.0:80", "http://[::]:80"])
def test_the_curl_line_uses_an_address_that_can_be_reached(address: str) -> None:
    line = curl_line(address, "it's", key=True)
    assert line.startswith("curl http://127.0.0.1:80/v1/chat/completions ")
    assert '-H "Authorization: Bearer $PIPPIN_API_KEY"' in line
    assert curl_line("http://[::1]:80", "m", key=False).startswith(
        "curl 'http://[::1]:80/v1/chat/completions' "
    )


def test_a_log_line_has_the_request_in_its_json_form() -> None:
    record = logging.LogRecord("pippin.worker", logging.INFO, "", 0, "done %d", (3,), None)
    record.__dict__["request_id"] = "r1"
    assert '"message": "done 3", "request_id": "r1"}' in JsonFormatter().format(record)
    assert TEXT.format(record).endswith("INFO    done 3")


class Writes(io.StringIO):
    """Remembers each write, as a stream without a buffer passes it on."""

    def __init__(self, *, terminal: bool = False) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.terminal = terminal

    def write(self, text: str) -> int:
        self.seen.append(text)
        return super().write(text)

    def isatty(self) -> bool:
        return self.terminal


def test_the_greeting_names_what_is_to_be_downloaded_and_asks_each_kind_for_what_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output = Writes()
    monkeypatch.setattr(sys, "stdout", output)
    models = [
        greeting.Served("org/ears", "transcription", "not downloaded yet"),
        greeting.Served("m", "language"),
    ]
    greeting.greet(ServerOptions(), "http://127.0.0.1:1", models, models[1])
    assert "Model: org/ears (not downloaded yet), m\n" in output.seen[0]
    assert "curl http://127.0.0.1:1/v1/audio/transcriptions -F model=org/ears" in output.seen[0]
    assert "The page: http://127.0.0.1:1/    In a terminal: pippin run\n" in output.seen[0]


def test_a_server_without_any_model_offers_one_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    output = Writes()
    monkeypatch.setattr(sys, "stdout", output)
    greeting.greet(ServerOptions(memory_budget_gb=64, page=False), "http://127.0.0.1:1", [], None)
    assert "No model is here. One that fits: pippin pull mlx-community/" in output.seen[0]
    assert "curl" not in output.seen[0]
    assert "The page" not in output.seen[0]


def test_a_broken_folder_is_damaged_and_not_to_be_downloaded(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/config.json").write_text("{")
    options = ServerOptions(models=(ModelEntry(path=str(tmp_path / "broken")), ModelEntry(path="org/other")))
    catalog = Catalog(options, CatalogRoots(hub=tmp_path / "hub", imports=tmp_path / "imports"))
    faults = [each.fault for each in greeting.served_models(options, catalog)]
    assert faults == ["damaged", "not downloaded yet"]


def test_a_damaged_model_is_not_offered_to_try(capsys: pytest.CaptureFixture[str]) -> None:
    damaged, sound = greeting.Served("m", "language", greeting.DAMAGED), greeting.Served("sound", "language")
    greeting.greet(ServerOptions(), "http://127.0.0.1:1", [damaged], sound)
    shown = capsys.readouterr().out
    assert "Model: m (damaged)" in shown
    assert '"model": "sound"' in shown


def test_what_is_said_is_one_write_that_ends_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `PYTHONUNBUFFERED` a `print` is two, and another thread's log line may come between them."""
    output, errors = Writes(), Writes()
    monkeypatch.setattr(sys, "stdout", output)
    monkeypatch.setattr(sys, "stderr", errors)
    terminal.say("it is ready.")
    one = greeting.Served("m", "language")
    greeting.greet(ServerOptions(), "http://127.0.0.1:1", [one], one)
    with terminal.progress("Loading m:") as tell:
        tell(1, 2, "weights")
    assert len(output.seen) == 2
    assert errors.seen == ["Loading m: 1 of 2 weights\n"]
    assert all(text.endswith("\n") for text in output.seen)


def test_a_log_line_comes_above_a_bar_and_never_into_it(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = Writes(terminal=True)
    monkeypatch.setattr(sys, "stderr", errors)
    monkeypatch.setenv("TERM", "xterm")
    log = LogStream()
    log.setFormatter(TEXT)
    with terminal.progress("Loading m:") as tell:
        for done in range(3):
            tell(done, 3, "weights")
            log.handle(logging.LogRecord("pippin", logging.INFO, "", 0, f"line {done}", None, None))
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", errors.getvalue().replace("\r", "\n"))
    lines = [line for line in shown.split("\n") if "line " in line]
    assert len(lines) == 3
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d INFO +line \d", line) for line in lines), lines


def test_a_server_without_kernels_says_what_adds_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(greeting, "accelerator", lambda: "cpu")
    for has, told in ((False, True), (True, False)):
        monkeypatch.setattr(greeting, "has_cpu_kernels", lambda has=has: has)
        greeting.greet(ServerOptions(), "http://127.0.0.1:1", [], None)
        said = capsys.readouterr().out
        assert ("float32" in said, kernels_command() in said) == (told, told)
