"""`pippin bench`: a sweep, and its file."""

import json

import pytest

from pippin.cli.chat.client import Ended, parts
from pippin.cli.verbs.bench import Reply, counts, point, shown
from pippin.config.errors import ConfigError
from tests.cli.serving import Terminal, terminal

__all__ = ["terminal"]


def reply(*arrivals: float, tokens: int = 0, accepted: int = 0, rejected: int = 0) -> Reply:
    ended = Ended("stop", completion_tokens=tokens, accepted_tokens=accepted, rejected_tokens=rejected)
    return Reply(sent=0.0, arrivals=list(arrivals), ended=ended)


def test_a_point_is_what_its_requests_took() -> None:
    found = point((8, 3, 2), [reply(0.2, 0.3, 0.4, tokens=3), reply(0.1, tokens=1)], 2.0)
    assert (found.rate, found.tokens, found.requests) == (2.0, 4, 2)
    assert found.first_ms == pytest.approx(150)
    assert found.first_p99_ms == pytest.approx(200)
    assert found.gap_ms == pytest.approx(100)
    assert point((8, 3, 1), [reply()], 1.0).first_ms is None


def test_what_became_of_proposals_is_shown_where_there_were_any() -> None:
    usage = {
        "completion_tokens": 9,
        "completion_tokens_details": {"accepted_prediction_tokens": 6, "rejected_prediction_tokens": 2},
    }
    [told] = parts(iter([f"data: {json.dumps({'choices': [], 'usage': usage})}"]))
    assert isinstance(told, Ended)
    drafted, plain = point((8, 9, 1), [Reply(0.0, ended=told)], 1.0), point((8, 9, 2), [reply()], 1.0)
    assert (drafted.proposed, drafted.accepted) == (8, 6)
    assert "75% of 8" in shown([drafted, plain])
    assert "ACCEPTED" not in shown([plain])


def test_what_is_no_number_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match="whole numbers from 1"):
        counts("--clients", "1,0")


def test_no_server_is_one_sentence(terminal: Terminal) -> None:
    done = terminal.run("bench", "--server", "http://127.0.0.1:9")
    assert done.returncode == 1
    assert "No server answers at http://127.0.0.1:9" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_server_is_measured_and_the_file_is_written(terminal: Terminal) -> None:
    (terminal.home / "demo.script.json").write_text('{"gap": 0.001, "context_window": 65536}')
    with terminal.serving("demo.script.json") as serving:
        serving.wait_for(r"(\S+) is ready after")
        flags = ("--prompt", "20,40", "--answer", "8", "--clients", "1,2", "--requests", "1")
        done = terminal.run("bench", *flags, "--json", "run.json")
    assert done.returncode == 0, done.stderr
    assert "TOKENS/S" in done.stdout
    points = json.loads((terminal.home / "run.json").read_text())["points"]
    assert [(each["prompt_words"], each["clients"], each["tokens"]) for each in points] == [
        (20, 1, 8),
        (20, 2, 16),
        (40, 1, 8),
        (40, 2, 16),
    ]
