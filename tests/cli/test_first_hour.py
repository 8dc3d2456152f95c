"""Finding a model, fetching it, and finding one's way: `recommend`, `search`, `pull`, `logs`, `open`, `completion`."""

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.cli.serving import Terminal, terminal

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
    refused = terminal.run("search", "tiny", "--offline")
    assert refused.returncode == 1
    assert "--offline forbids" in refused.stderr


@pytest.mark.parametrize("status", [429, 503])
def test_a_hub_that_does_not_answer_is_one_line(terminal: Terminal, status: int) -> None:
    with hub(status=status) as (address, _):
        terminal.environment["HF_ENDPOINT"] = address
        assert terminal.run("search", "tiny").stderr == (
            f"pippin: The hub answered {status}. Try again in a while.\n"
        )
    assert "The hub cannot be reached" in terminal.run("search", "tiny").stderr


def test_recommend_says_what_to_type_next(terminal: Terminal) -> None:
    done = terminal.run("recommend", "--for", "embed", "--memory", "64")
    assert done.returncode == 0
    assert "Fetch one: pippin pull mlx-community/Qwen3-Embedding" in done.stdout
    assert terminal.run("recommend", "--memory", "0.001").returncode == 1


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


def test_a_shell_takes_the_completion_and_completes(terminal: Terminal) -> None:
    script = terminal.run("completion", "bash").stdout
    asked = script + '\nCOMP_WORDS=(pippin se); COMP_CWORD=1; _pippin; echo "${COMPREPLY[@]}"\n'
    asked += 'COMP_WORDS=(pippin fit --cl); COMP_CWORD=2; _pippin; echo "${COMPREPLY[@]}"\n'
    done = subprocess.run(
        ["bash", "-c", asked], capture_output=True, text=True, check=True, cwd=terminal.home
    )
    assert (
        done.stdout == "serve search service\n--clients\n"
        or done.stdout == "serve service search\n--clients\n"
    )
    assert "-l json-schema" in terminal.run("completion", "fish").stdout
    assert terminal.run("completion", "zsh").stdout.startswith("autoload")
