"""Finding a model, fetching it, and finding one's way: `recommend`, `search`, `pull`, `logs`, `open`, `completion`."""

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pexpect
import pytest

from tests.catalog.folders import write_model
from tests.cli.serving import SECONDS, Terminal, terminal

__all__ = ["terminal"]

FOUND = [{"id": "org/tiny-4bit", "downloads": 12345, "pipeline_tag": "text-generation"}]


@contextmanager
def hub(*, status: int = 200) -> Iterator[tuple[str, list[dict[str, list[str]]]]]:
    """A hub that finds one model, and what it was asked."""
    asked: list[dict[str, list[str]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(parse_qs(urlsplit(self.path).query))
            body = json.dumps(FOUND).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_search_names_models_of_the_hub_and_what_to_type_next(terminal: Terminal) -> None:
    with hub() as (address, asked):
        terminal.environment["HF_ENDPOINT"] = address
        done = terminal.run("search", "tiny", "model", "--limit", "3")
        assert (done.returncode, done.stderr) == (0, "")
        assert "org/tiny-4bit  12,345     text-generation" in done.stdout
        assert "pippin fit org/tiny-4bit" in done.stdout
        assert asked[0]["search"] == ["tiny model"]
        assert asked[0]["filter"] == ["mlx"]
        assert asked[0]["limit"] == ["3"]
        assert json.loads(terminal.run("search", "tiny", "--all", "--json").stdout)[0]["downloads"] == 12345
        assert "filter" not in asked[1]
        assert len(asked) == 2, "the client asks for nothing else, such as a list of agents"
    refused = terminal.run("search", "tiny", "--offline")
    assert refused.returncode == 1
    assert "--offline or HF_HUB_OFFLINE forbids" in refused.stderr


@pytest.mark.parametrize("status", [429, 503])
def test_a_hub_that_does_not_answer_is_one_line(terminal: Terminal, status: int) -> None:
    with hub(status=status) as (address, _):
        terminal.environment["HF_ENDPOINT"] = address
        said = terminal.run("search", "tiny").stderr
        assert said.startswith(f"pippin: The hub answered {status}. Try again in a while. `pippin list`")
        assert said.count("\n") == 1
    assert "The hub cannot be reached" in terminal.run("search", "tiny").stderr


def test_recommend_says_what_to_type_next(terminal: Terminal) -> None:
    done = terminal.run("recommend", "--for", "embed", "--memory", "64")
    assert done.returncode == 0
    assert "Fetch one: pippin pull mlx-community/Qwen3-Embedding" in done.stdout
    assert terminal.run("recommend", "--memory", "0.1").returncode == 1


def test_the_log_of_a_running_server_is_found_by_itself(terminal: Terminal) -> None:
    none = terminal.run("logs")
    assert none.returncode == 1
    assert "Start one: pippin serve" in none.stderr
    with terminal.serving("scripted") as serving:
        serving.wait_for(r"(\S+) is ready after")
        assert terminal.run("logs", "--path").stdout.strip() == str(serving.output)
        assert "is ready after" in terminal.run("logs", "-n", "50").stdout
        assert terminal.run("logs", "-n", "1").stdout.count("\n") == 1
        assert terminal.run("open", "--print").stdout == f"{serving.address}/\n"
        assert f"A server runs at {serving.address}" in terminal.run().stdout


COMPLETED = {
    "pippin se": {"search", "serve", "service"},
    "pippin fit --cl": {"--clients"},
    "pippin agent cl": {"claude", "claude-desktop", "cline"},
    "pippin run dem": {"demo"},
}


@pytest.fixture(scope="module")
def shelves(tmp_path_factory: pytest.TempPathFactory) -> Terminal:
    """A home with a model, and a folder on the path in which `pippin` lies."""
    terminal = Terminal(tmp_path_factory.mktemp("shells"))
    write_model(terminal.home / "models" / "demo")
    program = terminal.home / "bin" / "pippin"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pippin "$@" --model-dir "$HOME/models"\n')
    program.chmod(0o755)
    terminal.environment["PATH"] = f"{program.parent}:{terminal.environment['PATH']}"
    return terminal


def asked_of(shell: str, terminal: Terminal, script: str) -> str:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    (terminal.home / f"pippin.{shell}").write_text(terminal.run("completion", shell).stdout)
    plain = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    done = subprocess.run(
        [shell, *plain, "-c", script],
        env=terminal.environment,
        cwd=terminal.home,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_bash_completes_commands_flags_agents_and_models(shelves: Terminal) -> None:
    lines = ["source ./pippin.bash"]
    for line in COMPLETED:
        words = line.split()
        lines += [f"COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _shtab_pippin; echo ${{COMPREPLY[@]}}"]
    found = asked_of("bash", shelves, "\n".join(lines)).splitlines()
    assert [set(line.split()) for line in found] == list(COMPLETED.values())


def test_zsh_completes_commands_flags_agents_and_models(shelves: Terminal) -> None:
    """As it is typed, for zsh completes nothing in a script."""
    if shutil.which("zsh") is None:
        pytest.skip("there is no zsh")
    environment: Any = {**shelves.environment, "TERM": "dumb", "PS1": "> "}
    zsh = pexpect.spawn(
        "zsh", ["-f"], env=environment, cwd=str(shelves.home), encoding="utf-8", timeout=SECONDS
    )
    try:
        zsh.sendline(
            'autoload -Uz compinit && compinit -u -d dump && eval "$(pippin completion zsh)"; echo sourced=$?'
        )
        zsh.expect("sourced=0")
        for typed, added in (
            ("pippin recom", "mend"),
            ("fit --cl", "ients"),
            ("agent clau", "de"),
            ("run dem", "o"),
        ):
            zsh.send(typed + "\t")
            zsh.expect(typed + added)
            zsh.send("\x15pippin ")  # ctrl-U empties the line
    finally:
        zsh.close(force=True)


def test_fish_completes_commands_flags_agents_and_models(shelves: Terminal) -> None:
    for line, wanted in COMPLETED.items():
        found = asked_of("fish", shelves, f"source ./pippin.fish; complete -C '{line}'")
        assert {each.split("\t")[0] for each in found.splitlines()} == wanted
