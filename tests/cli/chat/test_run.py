"""`pippin run` as a person types it, on a pseudo-terminal, and in pipes."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pexpect
import psutil
import pytest

from tests.cli.serving import SECONDS, Terminal, terminal

__all__ = ["terminal"]

# Starts a command as a shell starts what it puts into the background.
IGNORING_INTERRUPTS = ("/bin/sh", "-c", "trap '' INT; exec \"$@\"", "sh")
SCRIPT = {
    "context_window": 65536,
    "rules": [
        {"when": {"user": "slowly"}, "say": ["going ", *["on "] * 4000], "gap": 0.05},
        {"when": {"user": "who are you", "system": "pirate"}, "say": "Arr."},
        {"when": {"user": "think first"}, "think": "Let me see.", "say": "Done."},
        {"when": {"user": "too much"}, "error": {"kind": "invalid_request", "message": "That is too much."}},
        {"when": {"user": "second", "turn": 2}, "say": "This is **turn two**."},
    ],
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """A home with a server that `pippin run` finds, one for all tests that need no more."""
    terminal = Terminal(tmp_path_factory.mktemp("served"))
    (terminal.home / "demo.script.json").write_text(json.dumps(SCRIPT))
    with terminal.serving("demo.script.json") as serving:
        serving.wait_for(r"(\S+) is ready after")
        yield terminal


@contextmanager
def chat(
    terminal: Terminal, *words: str, seconds: float = SECONDS, through: tuple[str, ...] = ()
) -> Iterator["pexpect.spawn[str]"]:
    """`pippin run` on a pseudo-terminal, started `through` another command."""
    environment: dict[str, str] = {**terminal.environment, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
    program, *arguments = (*through, sys.executable, "-m", "pippin", "run", *words)
    child = pexpect.spawn(
        program,
        arguments,
        env=environment,  # type: ignore[arg-type]
        cwd=str(terminal.home),
        encoding="utf-8",
        timeout=seconds,
        dimensions=(30, 100),
    )
    try:
        yield child
    finally:
        child.close(force=True)


def piped(terminal: Terminal, text: str, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "pippin", "run", *words],
        env=terminal.environment,
        cwd=terminal.home,
        input=text,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def test_a_conversation_on_a_terminal(served: Terminal) -> None:
    with chat(served) as child:
        child.expect("demo: ask away")
        child.send("hello there\r")
        child.expect("hello there.*hello there")
        child.send("the second\r")
        child.expect("This is .*turn two")
        child.send("/undo\r")
        child.expect("is forgotten")
        child.send("/system You are a pirate.\r")
        child.expect("pirate")
        child.send("who are you\r")
        child.expect("Arr")
        child.send("too much\r")
        child.expect("That is too much")
        child.send("/save trip\r")
        child.expect("Kept: ")
        child.send("/nonsense\r")
        child.expect("There is no command /nonsense")
        child.send("think first\r")
        child.expect("Let me see.*Done")
        child.send("/stats\r")
        child.expect(r"\d+ tokens at [\d.]+ a second")
        child.send("/bye\r")
        child.expect(pexpect.EOF)
    kept = json.loads((served.home / ".cache/pippin/conversations/trip.json").read_text())
    assert [message["content"] for message in kept["messages"]] == [
        "hello there",
        "hello there",
        "who are you",
        "Arr.",
    ]
    with chat(served, "--load", "trip") as child:
        child.expect("2 questions and their answers are here again")
        child.expect("> who are you.*Arr")
        child.send("/set parameter temperature 0.2\r")
        child.expect("temperature 0.2")
        child.send("/set num_ctx 4096\r")
        child.expect("--context-length")
        child.send("/set format yaml\r")
        child.expect("takes json, and not yaml")
        child.send("/show\r")
        child.expect("demo.*pirate.*temperature 0.2")
        child.send("/bye\r")
        child.expect(pexpect.EOF)


def test_ctrl_c_stops_the_answer_and_what_came_stays(served: Terminal) -> None:
    """Though whatever started the chat has the signal ignored."""
    with chat(served, "demo", through=IGNORING_INTERRUPTS) as child:
        child.expect("ask away")
        child.send("slowly\r")
        child.expect("going on")
        child.sendintr()
        child.expect("stopped")
        child.send("/save cut\r")
        child.expect("Kept")
        child.send("still there\r")
        child.expect("still there.*still there")
        child.send("/bye\r")
        child.expect(pexpect.EOF)
    kept = json.loads((served.home / ".cache/pippin/conversations/cut.json").read_text())
    assert kept["messages"][1]["content"].startswith("going on")
    assert len(kept["messages"][1]["content"]) < 3 * 4000


def test_what_is_piped_in_stands_behind_the_prompt(served: Terminal) -> None:
    done = piped(served, "disk full\n", "what broke?")
    assert (done.returncode, done.stdout, done.stderr) == (0, "what broke?\n\ndisk full\n", "")
    assert piped(served, "hello", "demo").stdout == "hello\n"
    assert piped(served, "", "demo", "several", "words").stdout == "several words\n"


def test_a_word_is_a_prompt_unless_it_names_a_model_here(served: Terminal) -> None:
    assert piped(served, "", "hello").stdout == "hello\n"
    assert piped(served, "", "hello", "there").stdout == "hello there\n"
    assert piped(served, "", "-m", "demo", "demo").stdout == "demo\n"
    assert piped(served, "", "demo", "hello").stdout == "hello\n"


def test_no_name_in_what_is_piped_in_attaches_a_file(served: Terminal) -> None:
    (served.home / "secret.txt").write_text("the key")
    (served.home / "photo.png").write_bytes(b"x")
    done = piped(served, "see @secret.txt and photo.png\n", "what broke?")
    assert done.stdout == "what broke?\n\nsee @secret.txt and photo.png\n"
    mistyped = piped(served, "", "read @secrets.txt please")
    assert (mistyped.returncode, mistyped.stdout) == (0, "read @secrets.txt please\n")
    assert mistyped.stderr == "(@secrets.txt is no file here, and is sent as it stands)\n"


def test_a_file_may_come_first(served: Terminal) -> None:
    (served.home / "notes.txt").write_text("Apples are red.")
    with chat(served, "@notes.txt", "what colour?", "--plain") as child:
        child.expect("with notes.txt|what colour")
        child.expect(pexpect.EOF)


def test_a_schema_is_kept(served: Terminal) -> None:
    (served.home / "schema.json").write_text(
        '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'
    )
    done = piped(served, "", "demo", "give me one", "--json-schema", "schema.json")
    assert isinstance(json.loads(done.stdout)["a"], int)
    refused = piped(served, "", "demo", "give", "--json-schema", "{")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "this is no JSON" in refused.stderr


def test_errors_are_one_line_that_names_the_way_out(served: Terminal) -> None:
    for words, status, said in (
        (("demo", "too much"), 1, "That is too much."),
        (("-m", "nothing-like-it", "hello"), 1, "pippin pull ORG/NAME"),
        (("demoo", "hello"), 1, "Did you mean `demo`"),
        (("demo",), 2, "Give a prompt"),
        (("hello there", "--server", "127.0.0.1:9"), 1, "Start one: pippin serve"),
    ):
        done = piped(served, "", *words)
        assert done.returncode == status, done
        assert re.search(said, done.stderr), done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_without_a_server_one_is_started_and_leaves_with_the_chat(terminal: Terminal) -> None:
    assert piped(terminal, "", "scripted", "echo this").stdout == "echo this\n"
    assert not list((terminal.home / ".cache/pippin/run").glob("*.json"))
    assert not list((terminal.home / ".cache/pippin/logs").glob("*.log"))


def test_a_closed_window_ends_the_server_too_and_keep_lets_it_stay(terminal: Terminal) -> None:
    run = terminal.home / ".cache/pippin/run"
    with chat(terminal, "scripted") as child:
        child.expect("ask away")
        (word,) = run.glob("*.json")
        server = psutil.Process(int(word.stem))
    server.wait(SECONDS)
    assert piped(terminal, "", "scripted", "hello", "--keep").stdout == "hello\n"
    (word,) = run.glob("*.json")
    kept = psutil.Process(int(word.stem))
    try:
        assert kept.is_running()
        assert piped(terminal, "", "hello again?").stdout == "hello again?\n"
    finally:
        kept.terminate()
        deadline = time.monotonic() + SECONDS
        while word.exists() and time.monotonic() < deadline:
            time.sleep(0.05)


def test_a_chat_that_is_killed_takes_its_server_with_it(terminal: Terminal) -> None:
    with chat(terminal, "scripted") as child:
        child.expect("ask away")
        (word,) = (terminal.home / ".cache/pippin/run").glob("*.json")
        server = psutil.Process(int(word.stem))
        child.kill(signal.SIGKILL)
        server.wait(SECONDS)
    assert not word.exists()


def test_a_model_that_can_not_be_loaded_is_a_line_and_leaves_its_log(terminal: Terminal) -> None:
    (terminal.home / "bad.script.json").write_text('{"load_error": "There is no room."}')
    done = piped(terminal, "", "bad.script.json", "hello")
    assert done.returncode == 1
    assert "There is no room." in done.stderr
    (log,) = (terminal.home / ".cache/pippin/logs").glob("*.log")
    assert str(log) in done.stderr


@pytest.mark.model
@pytest.mark.timeout(300)
def test_a_real_model_talks(terminal: Terminal, demo_model: Path) -> None:
    with chat(terminal, str(demo_model), "--temperature", "0", "--max-tokens", "24", seconds=200) as child:
        child.expect("ask away")
        child.send("What is the capital of France?\r")
        child.expect("Paris")
        child.send("/stats\r")
        child.expect(r"tokens at [\d.]+ a second")
        child.send("/bye\r")
        child.expect(pexpect.EOF)
