"""`pippin bench`: a sweep, its files, and two runs side by side."""

import csv
import json
from pathlib import Path

import pytest

from pippin.cli.bench import Reply, Report, Run, compared, note, point, read_prompts, shown
from pippin.cli.verbs.bench import counts
from pippin.config.errors import ConfigError
from tests.cli.serving import Terminal, terminal

__all__ = ["terminal"]


def test_a_point_is_what_its_requests_took() -> None:
    slow = Reply(sent=0.0, counts=True, arrivals=[0.2, 0.3, 0.4], tokens=3)
    quick = Reply(sent=1.0, counts=True, arrivals=[1.1], tokens=1)
    found = point(8, 3, 2, [Run(2.0, [slow, quick])])
    assert (found.rate, found.tokens, found.requests) == (2.0, 4, 2)
    assert found.first_ms == pytest.approx(150)
    assert found.first_p99_ms == pytest.approx(200)
    assert found.gap_ms == pytest.approx(100)
    silent = point(8, 3, 1, [Run(1.0, [Reply(0.0, True)])])
    assert silent.first_ms is None
    assert "file" not in shown([found])


def test_what_became_of_proposals_is_shown_where_there_were_any() -> None:
    told = Reply(sent=0.0, counts=True)
    usage = {
        "completion_tokens": 9,
        "completion_tokens_details": {"accepted_prediction_tokens": 6, "rejected_prediction_tokens": 2},
    }
    note(told, f"data: {json.dumps({'choices': [], 'usage': usage})}")
    drafted, plain = point(8, 9, 1, [Run(1.0, [told])]), point(8, 9, 2, [Run(1.0, [Reply(0.0, True)])])
    assert (drafted.proposed, drafted.accepted) == (8, 6)
    assert "75% of 8" in shown([drafted, plain])
    assert "ACCEPTED" not in shown([plain])


def test_two_runs_are_compared_where_they_measured_the_same() -> None:
    def report(rate: float, clients: int = 1) -> Report:
        reply = Reply(sent=0.0, counts=True, arrivals=[1 / rate], tokens=int(rate))
        return Report("m", "http://h", [point(8, 4, clients, [Run(1.0, [reply])])])

    assert compared(report(10), report(20)).splitlines()[1].split()[-5:] == [
        "10.0",
        "20.0",
        "2.00",
        "0.50",
        "-",
    ]
    assert "nothing alike" in compared(report(10), report(10, clients=2))


@pytest.mark.parametrize(
    ("text", "prompts"),
    [
        (
            '[{"conversations": [{"from": "human", "value": "a"}, {"value": "x"}]}, {"conversations": []}]',
            ["a"],
        ),
        ('{"messages": [{"role": "user", "content": "a"}]}\n{"prompt": "b"}\n', ["a", "b"]),
        ("a\n\nb c\n", ["a", "b c"]),
    ],
)
def test_prompts_are_read_from_the_usual_files(tmp_path: Path, text: str, prompts: list[str]) -> None:
    (tmp_path / "data").write_text(text)
    assert read_prompts(tmp_path / "data", 10) == prompts


def test_what_is_no_such_file_or_number_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("[]")
    with pytest.raises(ConfigError, match="no prompt in it"):
        read_prompts(tmp_path / "data", 10)
    with pytest.raises(ConfigError, match="whole numbers from 1"):
        counts("--clients", "1,0")


def test_a_server_is_measured_and_the_files_are_written(terminal: Terminal) -> None:
    (terminal.home / "demo.script.json").write_text('{"gap": 0.001, "context_window": 65536}')
    with terminal.serving("demo.script.json") as serving:
        serving.wait_for(r"(\S+) is ready after")
        flags = ("--prompt", "20,40", "--answer", "8", "--clients", "1,2", "--requests", "1")
        done = terminal.run("bench", *flags, "--json", "run.json", "--csv", "run.csv")
    assert done.returncode == 0, done.stderr
    assert "40 + 8, 2 at once" in done.stdout
    points = json.loads((terminal.home / "run.json").read_text())["points"]
    assert [(each["prompt_words"], each["clients"], each["tokens"]) for each in points] == [
        (20, 1, 8),
        (20, 2, 16),
        (40, 1, 8),
        (40, 2, 16),
    ]
    rows = list(csv.DictReader((terminal.home / "run.csv").read_text().splitlines()))
    assert [float(row["rate"]) for row in rows] == [each["rate"] for each in points]
    assert "1.00" in terminal.run("bench", "--compare", "run.json", "run.json").stdout
