"""`pippin bench --scenarios` against a running server: a table whatever happens."""

import re
import subprocess
import sys
from argparse import Namespace

import psutil
import pytest

from pippin.cli import bench as bench_table
from tests.cli.serving import Terminal, terminal

__all__ = ["terminal"]

ROWS = (
    "one short prompt",
    "sixteen short prompts",
    "a shared prefix of 1,500 words",
    "a growing conversation, turns 2 to 6",
    "short ones behind a prompt of 5,000 words",
)
COLUMNS = ["what", "clients", "tokens/s", "first token ms", "gap ms", "gap p99 ms", "CPU ms/token", "MiB"]
REFUSES = '{"rules": [{"when": {"system": "."}, "error": {"kind": "invalid_request", "message": "No systems here."}}]}'


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def given(address: str) -> Namespace:
    return Namespace(server=address, api_key=None)


def test_the_table_has_a_figure_in_every_cell(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    (terminal.home / "demo.script.json").write_text('{"gap": 0.005, "context_window": 65536}')
    monkeypatch.setenv("HOME", terminal.environment["HOME"])
    with terminal.serving("demo.script.json") as serving:
        serving.wait_for(r"(\S+) is ready after")
        lines = list(bench_table.bench_table(given(serving.address), "default"))
    assert cells(lines[0]) == COLUMNS
    assert [cells(line)[0] for line in lines[2:]] == list(ROWS)
    assert [cells(line)[1] for line in lines[2:]] == ["1", "16", "16", "1", "3"]
    for line in lines[2:]:
        assert all(re.fullmatch(r"\d+(\.\d+)?", cell) for cell in cells(line)[2:]), line
        assert float(cells(line)[7]) > 10


def test_what_the_server_refuses_is_said_in_its_row(terminal: Terminal) -> None:
    (terminal.home / "demo.script.json").write_text(REFUSES)
    with terminal.serving("demo.script.json") as serving:
        serving.wait_for(r"(\S+) is ready after")
        lines = list(bench_table.bench_table(given(serving.address), "default"))
    told = {cells(line)[0]: cells(line)[2] for line in lines[2:]}
    assert re.fullmatch(r"[\d.]+", told["one short prompt"])
    assert told["a shared prefix of 1,500 words"] == "No systems here."


def test_no_server_is_one_sentence(terminal: Terminal) -> None:
    done = terminal.run("doctor", "--bench", "--server", "http://127.0.0.1:9")
    assert done.returncode == 1
    assert "No server answers at http://127.0.0.1:9" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_process_that_has_ended_counts_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        process = psutil.Process(ended.pid)
    assert bench_table._read(process, lambda gone: gone.memory_info().rss) == 0.0
