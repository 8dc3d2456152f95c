"""A newcomer's mistakes with each verb: every one ends in a sentence that names the next command."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pippin.cli.main import COMMAND, VERBS, main, with_next_command
from tests.catalog.folders import write_model

NOBODY = "127.0.0.1:9"  # where nothing listens
MISTAKES = f"""
agent nobody
agent claude
agent claude --server {NOBODY}
bench --server {NOBODY}
bench small.script.json --clients x
bench small.script.json --dataset none.json
bench small.script.json --requests 0
completion ksh
config set
config show --config none.yaml
decide text
decide text --question x --server {NOBODY}
doctor --nothing
fit nothing
fit small --context 0
fit broken
import none.gguf
import notes.txt
join --nothing
join --memory-gb nan
launch --port x
list --nothing
load x --server {NOBODY}
logs
logs --lines -1
open --server {NOBODY}
ps --server {NOBODY}
pull
pull nothing
pull org/none --offline
pull org/none --retries x
recommend --for x
recommend --memory nan
recommend --memory 0
rm nothing
rm org/none
run nothing hello
run small --server {NOBODY} hello
run small --json-schema {{ hello
search
search words --offline
search words --limit 0
serve --port x
serve --config none.yaml
serve --nothing
service start
show nothing
show broken
show org/none
sevre
stop
stop --port 9
stop --timeout nan
verify none-such
unload x --server {NOBODY}
worker
""".strip().splitlines()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME", "PIPPIN_SERVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIPPIN_HOME", str(tmp_path / "pippin"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "pippin/models/small")
    (write_model(tmp_path / "pippin/models/broken") / "config.json").write_text("{")
    (tmp_path / "notes.txt").write_text("no weights")
    (tmp_path / "small.script.json").write_text(json.dumps({"rules": []}))
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"a": {"command": "x"}}}))
    return tmp_path


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_one_line_with_the_next_command(line: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) in (1, 2)
    [said] = capfd.readouterr().err.splitlines()
    assert said.startswith("pippin: ")
    assert COMMAND.search(said.removeprefix("pippin: ")), said


def test_no_verb_is_left_out() -> None:
    assert {line.split()[0] for line in MISTAKES} - {"sevre", "launch"} == set(VERBS) - {"version"}


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("pull org/none --retries 0", "`pippin pull org/none` goes on from what has arrived"),
        ("search words", "`pippin list`"),
    ],
)
def test_without_a_network_the_way_on_is_named(home: Path, words: str, wanted: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pippin", *words.split()],
        env={**os.environ, "HF_ENDPOINT": f"http://{NOBODY}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=home,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot be reached" in done.stderr
    assert wanted in done.stderr.splitlines()[-1]


def test_a_sentence_that_leads_on_is_left_alone() -> None:
    assert with_next_command("Start one: pippin serve", "ps") == "Start one: pippin serve"
    assert with_next_command("It is half here", "show", "load_failed").startswith(
        "It is half here. `pippin list`"
    )
    assert with_next_command("No.", "fit") == "No. See `pippin fit --help`."
